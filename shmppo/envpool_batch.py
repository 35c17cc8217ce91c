"""A range of environments in one of EnvPool's pools: stepped together, in C++.

Such a run is not exact: EnvPool seeds an environment only when it makes it, so an episode that was lost cannot be
played again. It does not depend on the number of workers: each environment has a seed of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmppo.batches import Batch, Ended
from shmppo.config import TrainConfig
from shmppo.envpool_env import open_pool
from shmppo.envs import EnvironmentFault, Slot, Task
from shmppo.streams import episode_seed


class PooledBatch(Batch):
    """Environments of one pool."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, begun: Sequence[int]) -> None:
        """begun: [high − low] episodes that each environment began before it is made anew here: part of its seed."""
        super().__init__(config, task, [Slot(n) for n in range(low, high)])
        streams = range(config.first_env + low, config.first_env + high)
        seeds = [episode_seed(config.seed, n, episodes) for n, episodes in zip(streams, begun, strict=True)]
        try:
            self._pool = open_pool(config, seeds)
        except Exception as error:
            raise EnvironmentFault(low, f"could not be made: {error}") from error

    def step(self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> list[Ended]:
        try:
            observation, rewards[:], terminated[:], truncated[:], _ = self._pool.step(np.asarray(actions))
        except Exception as error:
            raise self._fault(0, f"or one of its pool raised {error!r}") from error
        self._see(observation, range(len(self.slots)))
        for i in np.flatnonzero(~np.isfinite(rewards)).tolist():
            raise self._fault(i, f"rewarded {rewards[i]}: not finite")
        for _, broken in self._not_finite():
            raise broken
        self.returns = [total + reward for total, reward in zip(self.returns, rewards.tolist(), strict=True)]
        self.lengths = [length + 1 for length in self.lengths]
        rows = np.flatnonzero(terminated | truncated).tolist()
        ended = [self._ended(i, terminated[i]) for i in rows]
        if rows:
            self._begin(rows, [self.slots[i].episode + 1 for i in rows])
        return ended

    def begin(self, episode: int) -> None:
        self._begin(range(len(self.slots)), [episode] * len(self.slots))

    def begin_one(self, i: int, episode: int) -> None:
        self._begin([i], [episode])

    def replay(self, i: int, number: int, actions: list, expected_hash: int, progress: np.ndarray) -> bool:
        self.begin_one(i, number + 1)
        return False

    def close(self) -> None:
        self._pool.close()

    def _begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        observation, _ = self._pool.reset(np.array(rows, np.int32))
        self._see(observation, rows)
        for i, episode in zip(rows, episodes, strict=True):
            self.slots[i].episode = episode
            self.returns[i], self.lengths[i] = 0.0, 0

    def _see(self, observation: Any, rows: Sequence[int]) -> None:
        """Take over the observations of some rows."""
        for leaf, obs in zip(self.observation.leaves, self.obs, strict=True):
            values = leaf.of(observation)
            if leaf.kind == "codes":
                values = np.stack([leaf.stored(value) for value in values])
            obs[rows] = values.reshape(len(rows), *leaf.shape)
        for i in self._hidden:
            self.obs[0][rows, i] = 0.0
