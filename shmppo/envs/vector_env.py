"""Ranges of environments that one process steps: observations in one memory, episodes that follow each other."""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError

log = logging.getLogger(__name__)

START_ATTEMPTS = 20  # episodes that may fail to begin, one after the other, before an environment is given up
_LEFT_ALONE = (0.0, False, False)
_DOUBLE = struct.Struct("d")


class EpisodeEnd(NamedTuple):
    """An episode that ended with a step."""

    i: int
    """Position in the batch."""
    final: tuple[np.ndarray, ...]
    """Its last observation, each leaf as stored, hidden indices 0."""
    terminated: bool
    """False where it was only truncated, so that its value goes on."""
    bad: bool
    """It was given up at a step that failed: that step has no outcome, and the episode counts in no statistics."""
    total: float
    """Undiscounted return."""
    length: int


class EnvHandle:
    """Environment n of the run, for ever, which plays one episode after the other."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.episode = 0

    def keep(self, snapshot: np.ndarray) -> None:
        """Write what `restore_snapshot` needs, uint8 [bytes]. Nothing where the environment offers no snapshots."""

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        """Bring the episode just begun to where it was kept."""


class VectorEnv(ABC):
    """A contiguous range of environments; those whose episode ends begin their next one.

    Attributes:
        obs: [n, …] of each leaf, the present observations with hidden indices 0. The one memory that steps write to:
            environments that reuse their own buffer cannot change it later.
        returns, lengths: return and length so far of each episode in progress.
        hashes: a running CRC-32 over each episode's raw observations, before anything is hidden, and rewards.
    """

    def __init__(self, config: TrainConfig, task: Task, handles: Sequence[EnvHandle]) -> None:
        self.handles = handles
        self.observation = observation = task.observation
        self.obs = tuple(np.zeros((len(handles), *leaf.shape), leaf.dtype) for leaf in observation.leaves)
        self.returns = [0.0] * len(handles)
        self.lengths = [0] * len(handles)
        self.hashes = [0] * len(handles)
        self._rows = list(zip(*self.obs, strict=True))
        self._vectors = [obs for obs in self.obs if obs.dtype == np.float32]
        self._hidden = list(config.hidden_indices)

    @abstractmethod
    def begin(self, episode: int) -> None:
        """Begin the same episode everywhere."""

    @abstractmethod
    def begin_one(self, i: int, episode: int) -> None:
        """Begin an episode of one environment."""

    @abstractmethod
    def step(
        self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        """Step every environment with its action (None leaves one as it is); fills the three rows [n] and `obs`.

        Raises:
            EnvError: naming the environment that raised or broke the contract.
        """

    @abstractmethod
    def replay(self, i: int, number: int, actions: list, expected_hash: int, progress: np.ndarray) -> bool:
        """Bring one environment to where an episode in progress was; whether it got there.

        Each step adds 1 to progress [1], so that who waits sees a long replay go on.

        Where the hash differs (an environment with a history of its own, another build of the simulator) the episode
        is given up and the next one begun.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""

    def _fault(self, i: int, message: str) -> EnvError:
        slot = self.handles[i]
        return EnvError(slot.index, f"{message} (episode {slot.episode}, after {self.lengths[i]} steps)")

    def _not_finite(self) -> Iterator[tuple[int, EnvError]]:
        """The environments whose present observation is not finite, and what is to be said of them."""
        for obs in self._vectors:
            if not np.isfinite(obs).all():
                for i in np.flatnonzero(~np.isfinite(obs).all(axis=1)).tolist():
                    yield i, self._fault(i, f"observed {obs[i].tolist()}: not finite")

    def _ended(self, i: int, terminated: bool) -> EpisodeEnd:
        """What is left of an episode that ended; raises EnvError where its last observation is not finite."""
        final = tuple(row.copy() for row in self._rows[i])
        final[0][self._hidden] = 0.0
        for part in final:
            if part.dtype == np.float32 and not np.isfinite(part).all():
                raise self._fault(i, f"ended with the observation {part.tolist()}: not finite")
        return EpisodeEnd(i, final, bool(terminated), False, self.returns[i], self.lengths[i])
