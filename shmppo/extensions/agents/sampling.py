"""Self-play: opponents act for the agents that the policy does not play, with earlier weights from shared memory.

Environment e plays against opponent e mod F, so an opponent has the same environments for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.agents.options import AgentOptions
from shmppo.extensions.agents.vector_env import AgentsVectorEnv
from shmppo.models.actor_critic import build_model, move_parameters
from shmppo.sampling.actor import Actor
from shmppo.sampling.extension import SamplingExtension


@dataclass
class _Opponent:
    """One opponent, and the arrays with which it acts for all agents of its environments."""

    slot: int
    columns: np.ndarray
    obs: list[np.ndarray]
    actor: Actor


class Opponents(SamplingExtension):
    """Acts for the opponents of a range of environments."""

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return AgentOptions.of(config).slots > 0

    def __init__(self, *arguments: Any) -> None:
        """Make the opponents of the own environments."""
        super().__init__(*arguments)
        config, distribution, options = self.config, self.task.distribution, AgentOptions.of(self.config)
        self._opponents: list[_Opponent] = []
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
            self._opponents.append(_Opponent(slot, own, obs, Actor(config, model, distribution, obs, low=low)))

    def begin_rollout(self, noise: np.ndarray) -> None:
        """Load the weights and the noise."""
        published = self.buffers.published.added
        for one in self._opponents:
            one.actor.load(published["opponent_mean"][one.slot], published["opponent_scale"][one.slot])
            one.actor.load_noise(noise[:, one.columns])

    def act(self, actions: np.ndarray, states: np.ndarray, t: int) -> None:
        """Replace the actions and the recurrent states of the agents that opponents play."""
        active = cast(AgentsVectorEnv, self.envs).opponent_active
        for one in self._opponents:
            played = active[one.columns]
            if not played.any():
                continue
            for target, source in zip(one.obs, self.envs.obs, strict=True):
                target[:] = source[one.columns]
            one.actor.states[:] = states[one.columns]
            columns, chosen = one.columns[played], one.actor.act(t)
            actions[columns], states[columns] = chosen[played], one.actor.states[played]


SAMPLING = Opponents
