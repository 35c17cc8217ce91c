"""Base class of vector environments: a contiguous range of environments that one process steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError


class EpisodeEnd(NamedTuple):
    """An episode that ended at a step."""

    i: int
    """Position of its environment within the range."""
    final: tuple[np.ndarray, ...]
    """Last observation, one array per leaf as stored, hidden indices 0. Empty if the episode failed."""
    terminated: bool
    """True if the episode terminated. False if it was truncated, so that its value bootstraps the return."""
    failed: bool
    """True if the environment failed and the episode is skipped.

    The step that failed has no outcome, and the episode is not part of any statistic.
    """
    episode_return: float
    """Sum of the rewards, not discounted."""
    length: int
    """Number of steps."""


class EnvHandle:
    """One environment of the run, identified by its index, and the number of its current episode."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.episode = 0

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        """Write a snapshot of the environment, uint8 [bytes]. Does nothing if it has no snapshots."""

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        """Restore what `save_snapshot` wrote. The episode of the snapshot must have been started before."""


class VectorEnv(ABC):
    """A contiguous range of n environments. When an episode ends, the next one starts within the same step.

    Attributes:
        handles: one handle per environment.
        observation: the leaves of the observation.
        obs: [n, …] per leaf: the current observations, hidden indices 0. Each step copies into this memory, so an
            environment may reuse its own arrays.
        returns, lengths: return and length so far of each current episode.
        hashes: CRC-32 of each current episode: its raw observations, before indices are hidden, and its rewards.
    """

    def __init__(self, config: TrainConfig, task: Task, handles: Sequence[EnvHandle]) -> None:
        self.handles = handles
        self.observation = observation = task.observation
        self.obs = tuple(np.zeros((len(handles), *leaf.shape), leaf.dtype) for leaf in observation.leaves)
        self.returns = [0.0] * len(handles)
        self.lengths = [0] * len(handles)
        self.hashes = [0] * len(handles)
        self._env_obs = list(zip(*self.obs, strict=True))  # per environment: a view into each array of `obs`
        self._float_obs = [obs for obs in self.obs if obs.dtype == np.float32]
        self._hidden = list(config.hidden_indices)

    @abstractmethod
    def reset_all(self, episode: int) -> None:
        """Start the episode with this number in every environment."""

    @abstractmethod
    def reset_env(self, i: int, episode: int) -> None:
        """Start the episode with this number in environment i."""

    @abstractmethod
    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        """Step every environment and write its observation to `obs`.

        Args:
            actions: one action per environment; an environment with None is not stepped.
            rewards: [n], written.
            terminated: bool [n], written.
            truncated: bool [n], written.

        Returns:
            The episodes that ended at this step.

        Raises:
            EnvError: if an environment raises or breaks Gymnasium's API. It names the environment.
        """

    @abstractmethod
    def replay(self, i: int, episode: int, actions: list[Any], expected_hash: int, progress: np.ndarray) -> bool:
        """Restore environment i by repeating the actions of its current episode.

        The replay fails if the hash differs. That happens if the environment depends on more than seed and actions, or
        if its library has changed. The episode is then skipped and the next one starts.

        Args:
            i: position of the environment within the range.
            episode: number of the episode.
            actions: the episode's actions so far.
            expected_hash: the value of `hashes` after these actions.
            progress: [1], increased by 1 for each step, so that the learner can detect a worker that hangs.

        Returns:
            Whether the replay succeeded.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""

    def _error(self, i: int, message: str) -> EnvError:
        """Create an error that names environment i, its episode, and its step."""
        handle = self.handles[i]
        return EnvError(handle.index, f"{message} (episode {handle.episode}, after {self.lengths[i]} steps)")

    def _find_nonfinite(self) -> Iterator[tuple[int, EnvError]]:
        """Yield (i, error) for each environment whose current observation is not finite."""
        for obs in self._float_obs:
            if not np.isfinite(obs).all():
                for i in np.flatnonzero(~np.isfinite(obs).all(axis=1)).tolist():
                    yield i, self._error(i, f"step returned the observation {obs[i].tolist()}, which is not finite")

    def _episode_end(self, i: int, terminated: bool) -> EpisodeEnd:
        """Describe the episode of environment i that has just ended.

        Raises:
            EnvError: if its last observation is not finite.
        """
        final = tuple(obs.copy() for obs in self._env_obs[i])
        final[0][self._hidden] = 0.0
        for part in final:
            if part.dtype == np.float32 and not np.isfinite(part).all():
                raise self._error(i, f"step returned the last observation {part.tolist()}, which is not finite")
        return EpisodeEnd(i, final, bool(terminated), False, self.returns[i], self.lengths[i])
