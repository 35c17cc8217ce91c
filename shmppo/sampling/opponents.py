"""Self-play: opponents act for the rows that the policy does not play, with earlier weights from shared memory.

Environment e plays against opponent e mod F, so an opponent has the same environments for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.agents_vector_env import AgentsVectorEnv
from shmppo.envs.spec import EnvSpec
from shmppo.models.actor_critic import build_model, move_parameters
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.sampling.actor import Actor


@dataclass
class _Opponent:
    """One opponent, and the arrays with which it acts for all rows of its environments."""

    slot: int
    rows: np.ndarray
    obs: list[np.ndarray]
    actor: Actor


class Opponents:
    """Acts for the opponents' rows of a range of environments."""

    def __init__(
        self, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, envs: AgentsVectorEnv, columns: range
    ) -> None:
        """Allocate the memory. columns: the rows of the rollout that `envs` has."""
        self._published, self._envs = buffers.published, envs
        self._opponents: list[_Opponent] = []
        size, distribution = config.env_rows, task.distribution
        for slot in range(config.slots):
            rows = np.flatnonzero([config.slot_of(config.first_row + n) == slot for n in columns])
            if not len(rows):
                continue
            model = build_model(config, task.observation, distribution)
            move_parameters(model, torch.from_numpy(buffers.published.opponents[slot]), keep=False)
            obs = [np.zeros((len(rows), *leaf.shape[1:]), leaf.dtype) for leaf in envs.obs]
            low = (config.first_row + columns[rows[0]]) // size // config.slots * size
            actor = Actor(config, model, distribution, obs, low=low)
            self._opponents.append(_Opponent(slot, rows, obs, actor))

    def load(self, noise: np.ndarray) -> None:
        """Load the weights, and the noise of a rollout, float32 [T, own, noise_size]."""
        for one in self._opponents:
            one.actor.load(self._published.opponent_mean[one.slot], self._published.opponent_scale[one.slot])
            one.actor.load_noise(noise[:, one.rows])

    def act(self, actions: np.ndarray, states: np.ndarray, t: int) -> None:
        """Replace the actions [own, A] and the recurrent states [own, S] of the rows that opponents play at step t."""
        for one in self._opponents:
            played = self._envs.opponent_active[one.rows]
            if not played.any():
                continue
            for target, source in zip(one.obs, self._envs.obs, strict=True):
                target[:] = source[one.rows]
            one.actor.states[:] = states[one.rows]
            rows, chosen = one.rows[played], one.actor.act(t)
            actions[rows], states[rows] = chosen[played], one.actor.states[played]
