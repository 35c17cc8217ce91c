"""Environments whose step times are measured (--step-times)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.vector_env import EpisodeEnd


class TimedSyncVectorEnv(SyncVectorEnv):
    """A `SyncVectorEnv` that measures the time of each step of each environment, with the reset after it."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, step_seconds: np.ndarray) -> None:
        """Create the environments low … high − 1.

        Args:
            config: the configuration of the run.
            task: the description of the environment.
            low: index of the first environment.
            high: index after the last environment.
            step_seconds: [T, high − low], written. Each step writes one row; after the last row, it starts again.
        """
        super().__init__(config, task, low, high)
        self._step_seconds = step_seconds
        self._t = 0

    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        ended = super().step(actions, rewards, terminated, truncated)
        self._t = (self._t + 1) % len(self._step_seconds)
        return ended

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        start = time.monotonic()
        result = super()._advance(i, action)
        self._step_seconds[self._t, i] = time.monotonic() - start
        return result

    def _reset_next(self, i: int) -> None:
        start = time.monotonic()
        super()._reset_next(i)
        self._step_seconds[self._t, i] += time.monotonic() - start
