"""The action log: the actions that restore every environment by replaying its episode in progress.

An episode is determined by its seed and its actions. The learner appends the actions of each rollout and drops those of
finished episodes. Workers store nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeInProgress:
    """An episode that has begun and not ended."""

    env_index: int
    number: int
    actions: np.ndarray | None
    """[steps so far, A] float32, as sampled. None: the episode is longer than the log's limit."""


class ActionLog:
    """Actions of the episode in progress of every environment, up to the last committed rollout.

    Attributes:
        iteration: rollouts committed. The next rollout starts from the carry of this iteration.
    """

    def __init__(self, num_envs: int, action_size: int, limit: int) -> None:
        """limit: steps of the longest episode whose actions are stored."""
        self.iteration = 0
        self._limit = limit
        self._action_size = action_size
        self._numbers = [0] * num_envs
        self._parts: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs  # steps of the episode in progress, stored or not

    def commit(
        self, actions: np.ndarray, ended: np.ndarray, numbers: np.ndarray, valid_steps: np.ndarray | None = None
    ) -> None:
        """Append a rollout.

        Args:
            actions: [T, N, A]; ended: [T, N] bool, whether an episode ended with the step.
            numbers: [N] number of the episode in progress after the rollout.
            valid_steps: [N] valid steps of each environment. None: all T.
        """
        steps = len(actions)
        lengths = [steps] * len(self._parts) if valid_steps is None else valid_steps.tolist()
        # The first step after the last end of an episode.
        begins = np.where(ended.any(axis=0), steps - np.argmax(ended[::-1], axis=0), 0)
        for n, (begin, end) in enumerate(zip(begins.tolist(), lengths, strict=True)):
            if begin:
                self._parts[n].clear()
                self._lengths[n] = 0
            self._lengths[n] += end - begin
            if self._lengths[n] > self._limit:
                if self._parts[n]:
                    log.info("environment %d: its episode is longer than --replay-limit %d", n, self._limit)
                self._parts[n].clear()
            elif begin < end:
                self._parts[n].append(actions[begin:end, n].copy())
        self._numbers = numbers.tolist()
        self.iteration += 1

    def forget(self, env_index: int) -> None:
        """Drop an episode that could not be restored; the environment has begun its next one."""
        self._numbers[env_index] += 1
        self._parts[env_index].clear()
        self._lengths[env_index] = 0

    def episodes(self, columns: range) -> list[EpisodeInProgress]:
        """The episodes in progress of some environments."""
        return [
            EpisodeInProgress(n, self._numbers[n], self._joined(n) if self._lengths[n] <= self._limit else None)
            for n in columns
        ]

    def _joined(self, n: int) -> np.ndarray:
        if not self._parts[n]:
            return np.zeros((0, self._action_size), np.float32)
        joined = np.concatenate(self._parts[n])
        self._parts[n] = [joined]
        return joined

    def state(self) -> dict[str, np.ndarray]:
        """Plain arrays: the stored actions of every environment one after the other, and the length of its episode."""
        joined = [self._joined(n) for n in range(len(self._parts))]
        return {
            "numbers": np.array(self._numbers),
            "lengths": np.array(self._lengths),
            "stored": np.array([len(actions) for actions in joined]),
            "actions": np.concatenate(joined),
        }

    def load(self, state: dict[str, np.ndarray], iteration: int) -> None:
        """The inverse of `state`, for a run that continues at `iteration`."""
        self.iteration = iteration
        self._numbers, self._lengths = state["numbers"].tolist(), state["lengths"].tolist()
        ends = np.cumsum(state["stored"])
        self._parts = [[part.copy()] if len(part) else [] for part in np.split(state["actions"], ends[:-1])]
