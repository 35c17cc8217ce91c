"""Two agents that need memory: the speaker sees a message, and the listener has to repeat it some steps later.

In the first step, only the speaker sees the message. The listener hears the speaker's action of that step once, and
answers in the last step. Both get 1 if the answer is right, so the best return of the team is 2. Without memory
(`--core none`), it is 1 on average. Needs the extra `pettingzoo`.
"""

import sys

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from shmppo import TrainConfig
from shmppo.train import main


class Relay(ParallelEnv):
    """The task: an episode has `delay` + 1 steps, and a message is one of `messages` numbers.

    Observations: the message, what the listener hears, whether the agent speaks now, and whether it answers now.
    """

    def __init__(self, messages: int = 2, delay: int = 8):
        self.messages, self.delay = messages, delay
        self.possible_agents, self.metadata = ["speaker", "listener"], {"name": "relay_v0"}
        self.generator = np.random.default_rng()

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (2 * self.messages + 2,))

    def action_space(self, agent):
        return spaces.Discrete(self.messages)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.agents, self.step_count = self.possible_agents.copy(), 0
        self.message = self.generator.integers(self.messages)
        return self.observations(), {agent: {} for agent in self.agents}

    def observations(self):
        speaker, listener = np.zeros((2, 2 * self.messages + 2), np.float32)
        if self.step_count == 0:
            speaker[[self.message, -2]] = 1
        if self.step_count == 1:
            listener[self.messages + self.spoken] = 1
        listener[-1] = self.step_count == self.delay
        return {"speaker": speaker, "listener": listener}

    def step(self, actions):
        if self.step_count == 0:
            self.spoken = actions["speaker"]
        ended = self.step_count == self.delay
        reward = float(ended and actions["listener"] == self.message)
        self.step_count += 1
        agents, self.agents = self.agents, [] if ended else self.agents
        values = (dict.fromkeys(agents, value) for value in (reward, ended, False))
        return self.observations(), *values, {agent: {} for agent in agents}


CONFIG = TrainConfig(
    env="agents_with_memory:Relay", core="gru", hidden_size=64, encoder_sizes=(64,), num_envs=32, rollout_steps=64,
    seq_len=32, minibatches=4, learning_rate=3e-3, entropy_coef=0.01, total_steps=200_000,
)  # fmt: skip

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
