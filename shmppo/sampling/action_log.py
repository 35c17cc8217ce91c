"""The action log: what it takes to bring every environment back to where it is.

An episode is (seed, actions). The learner appends each rollout's actions and forgets those of finished episodes;
workers keep nothing.
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
    """[steps so far, A] float32, as sampled; None where there are more than the log keeps."""


class ActionLog:
    """Actions of the episode in progress of every environment, up to the last committed rollout.

    Attributes:
        iteration: rollouts committed, so the carry to go on from is the one of index `iteration` mod 2.
    """

    def __init__(self, num_envs: int, action_size: int, limit: int) -> None:
        """limit: steps of an episode that are kept; of a longer one nothing is."""
        self.iteration = 0
        self._limit = limit
        self._action_size = action_size
        self._numbers = [0] * num_envs
        self._parts: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs  # steps of the episode in progress, kept or not

    def commit(
        self, actions: np.ndarray, ended: np.ndarray, numbers: np.ndarray, taken: np.ndarray | None = None
    ) -> None:
        """Append a rollout.

        Args:
            actions: [T, N, A]; ended: [T, N] bool, an episode ended with the step.
            numbers: [N] number of the episode in progress after the rollout.
            taken: [N] steps of each column that exist; None: all T.
        """
        steps = len(actions)
        lengths = [steps] * len(self._parts) if taken is None else taken.tolist()
        behind = np.where(ended.any(axis=0), steps - np.argmax(ended[::-1], axis=0), 0)  # first step after the last end
        for n, (begin, end) in enumerate(zip(behind.tolist(), lengths, strict=True)):
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
        """The environment's episode was given up and the next begun."""
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
        """Plain arrays: every environment's kept actions one after the other, and the length of its episode."""
        joined = [self._joined(n) for n in range(len(self._parts))]
        return {
            "numbers": np.array(self._numbers),
            "lengths": np.array(self._lengths),
            "kept": np.array([len(actions) for actions in joined]),
            "actions": np.concatenate(joined),
        }

    def load(self, state: dict[str, np.ndarray], iteration: int) -> None:
        self.iteration = iteration
        self._numbers, self._lengths = state["numbers"].tolist(), state["lengths"].tolist()
        ends = np.cumsum(state["kept"])
        self._parts = [[part.copy()] if len(part) else [] for part in np.split(state["actions"], ends[:-1])]
