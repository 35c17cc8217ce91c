"""Self-play: opponents act for the agents that the policy does not play, with earlier weights from shared memory.

Environment e plays against opponent e mod F, so an opponent has the same environments for any number of workers.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.agents.options import AgentOptions
from shmppo.extensions.agents.vector_env import AgentsVectorEnv
from shmppo.models.actor_critic import build_model, move_parameters
from shmppo.sampling.actor import Actor
from shmppo.sampling.extension import SamplingExtension


class Opponents(SamplingExtension):
    """Acts for the opponents of a range of environments."""

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return AgentOptions.of(config).slots > 0

    def __init__(self, *arguments: Any) -> None:
        """Make the opponents of the own environments."""
        super().__init__(*arguments)
        config, distribution, options = self.config, self.task.distribution, AgentOptions.of(self.config)
        # Each opponent acts for all columns of its environments: its slot, the columns, and their observations.
        self._opponents: list[tuple[int, np.ndarray, list[np.ndarray], Actor]] = []
        for slot in range(options.slots):
            own = np.flatnonzero([options.slot_of(config.first_row + n) == slot for n in self.columns])
            if not len(own):
                continue
            model = build_model(config, self.task.observation, distribution)
            weights = self.buffers.published.added["opponents"][slot]
            move_parameters(model, torch.from_numpy(weights), keep=False)
            obs = [np.zeros((len(own), *leaf.shape[1:]), leaf.dtype) for leaf in self.envs.obs]
            size = config.columns_per_env
            low = (config.first_row + self.columns[own[0]]) // size // options.slots * size
            self._opponents.append((slot, own, obs, Actor(config, model, distribution, obs, low=low)))

    def begin_rollout(self, noise: np.ndarray) -> None:
        """Load the weights and the noise."""
        published = self.buffers.published.added
        for slot, columns, _, actor in self._opponents:
            actor.load(published["opponent_mean"][slot], published["opponent_scale"][slot])
            actor.load_noise(noise[:, columns])

    def act(self, actions: np.ndarray, states: np.ndarray, t: int) -> None:
        """Replace the actions and the recurrent states of the agents that opponents play."""
        active = cast(AgentsVectorEnv, self.envs).opponent_active
        for _, columns, obs, actor in self._opponents:
            played = active[columns]
            if played.any():
                for target, source in zip(obs, self.envs.obs, strict=True):
                    target[:] = source[columns]
                actor.states[:] = states[columns]
                actions[columns[played]] = actor.act(t)[played]
                states[columns[played]] = actor.states[played]


SAMPLING = Opponents
