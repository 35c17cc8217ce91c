"""HalfCheetah-v5 with positions only for the actor. The critic also sees the velocities (an asymmetric actor-critic).

The critic is only needed for training, so it may use what a robot cannot measure. The trained policy, its export, and
`load_policy` need only the positions. Compare with `--critic-obs positions`.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="privileged_critic:make", separate_critic="all", actor_obs=("positions",), num_envs=16, rollout_steps=128,
    encoder_sizes=(128,), hidden_size=128, epochs=4, minibatches=4, seq_len=16, learning_rate=3e-4,
    total_steps=1_000_000,
)  # fmt: skip
POSITIONS = 8  # the first numbers of HalfCheetah's observation; the others are velocities


class Split(gymnasium.ObservationWrapper[dict[str, Any], np.ndarray, np.ndarray]):
    """Turns the observation into a Dict with positions and velocities."""

    def __init__(self, env: gymnasium.Env[np.ndarray, np.ndarray]) -> None:
        super().__init__(env)
        (size,) = env.observation_space.shape or (0,)
        unbounded = {"positions": POSITIONS, "velocities": size - POSITIONS}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-np.inf, np.inf, (numbers,)) for name, numbers in unbounded.items()}
        )

    def observation(self, observation: np.ndarray) -> dict[str, Any]:
        return {"positions": observation[:POSITIONS], "velocities": observation[POSITIONS:]}


def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make the environment. On the command line: `--env privileged_critic:make`."""
    return Split(gymnasium.make("HalfCheetah-v5", **kwargs))


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
