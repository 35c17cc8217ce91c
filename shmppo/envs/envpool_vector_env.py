"""A vector environment that steps a range of environments together in C++, with EnvPool.

Such a run is not exact: EnvPool seeds an environment only when it makes it, so a lost episode cannot be replayed. The
run does not depend on the number of workers, because each environment has its own seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.envpool import open_pool
from shmppo.envs.factory import close_environment
from shmppo.envs.spec import Task
from shmppo.envs.user_vector_env import BatchVectorEnv
from shmppo.envs.vector_env import EnvHandle, as_env_error
from shmppo.errors import EnvError
from shmppo.utils.rng import episode_seed


class EnvPoolVectorEnv(BatchVectorEnv):
    """A vector environment whose environments form one EnvPool pool."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, episodes: Sequence[int]) -> None:
        """Create the environments low … high − 1.

        Args:
            config: the configuration of the run.
            task: the description of the environment.
            low: index of the first environment.
            high: index after the last environment.
            episodes: [high − low], the episodes that each environment has started so far. The number is part of the
                seed, so that a new pool does not repeat old episodes.

        Raises:
            EnvError: if the pool cannot be created.
        """
        super().__init__(config, task, [EnvHandle(n) for n in range(low, high)])
        streams = range(config.first_env + low, config.first_env + high)
        seeds = [episode_seed(config.seed, n, episode) for n, episode in zip(streams, episodes, strict=True)]
        with as_env_error(low):
            self._pool = open_pool(config, seeds)

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        try:
            observation, rewards[:], terminated[:], truncated[:], self._infos = self._pool.step(np.asarray(actions))
        except Exception as error:
            raise self._raised(0, "step", error) from error
        self._store(observation, range(len(self.handles)))
        return {}

    def _begin_next(self, indices: Sequence[int]) -> None:
        self._reset(indices, [self.handles[i].episode + 1 for i in indices])

    def close(self) -> None:
        close_environment(self._pool, "the pool of environments")

    def _reset(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        observation, _ = self._pool.reset(np.array(indices, np.int32))
        self._store(observation, indices)
        self._begin(indices, episodes)
