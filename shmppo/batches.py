"""Ranges of environments that one process steps: observations in one memory, episodes that follow each other."""

from __future__ import annotations

import logging
import math
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shmppo.config import TrainConfig
from shmppo.envs import EnvironmentFault, EnvironmentSlot, Slot, Task

log = logging.getLogger("shmppo.batches")

START_ATTEMPTS = 20  # episodes that may fail to begin, one after the other, before an environment is given up
_LEFT_ALONE = (0.0, False, False)
_DOUBLE = struct.Struct("d")


class Ended(NamedTuple):
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


class Batch(ABC):
    """A contiguous range of environments; those whose episode ends begin their next one.

    Attributes:
        obs: [n, …] of each leaf, the present observations with hidden indices 0. The one memory that steps write to:
            environments that reuse their own buffer cannot change it later.
        returns, lengths: return and length so far of each episode in progress.
        hashes: a running CRC-32 over each episode's raw observations, before anything is hidden, and rewards.
    """

    def __init__(self, config: TrainConfig, task: Task, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.observation = observation = task.observation
        self.obs = tuple(np.zeros((len(slots), *leaf.shape), leaf.dtype) for leaf in observation.leaves)
        self.returns = [0.0] * len(slots)
        self.lengths = [0] * len(slots)
        self.hashes = [0] * len(slots)
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
    def step(self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> list[Ended]:
        """Step every environment with its action (None leaves one as it is); fills the three rows [n] and `obs`.

        Raises:
            EnvironmentFault: naming the environment that raised or broke the contract.
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

    def _fault(self, i: int, message: str) -> EnvironmentFault:
        slot = self.slots[i]
        return EnvironmentFault(slot.index, f"{message} (episode {slot.episode}, after {self.lengths[i]} steps)")

    def _not_finite(self) -> Iterator[tuple[int, EnvironmentFault]]:
        """The environments whose present observation is not finite, and what is to be said of them."""
        for obs in self._vectors:
            if not np.isfinite(obs).all():
                for i in np.flatnonzero(~np.isfinite(obs).all(axis=1)).tolist():
                    yield i, self._fault(i, f"observed {obs[i].tolist()}: not finite")

    def _ended(self, i: int, terminated: bool) -> Ended:
        """What is left of an episode that ended; raises EnvironmentFault where its last observation is not finite."""
        final = tuple(row.copy() for row in self._rows[i])
        final[0][self._hidden] = 0.0
        for part in final:
            if part.dtype == np.float32 and not np.isfinite(part).all():
                raise self._fault(i, f"ended with the observation {part.tolist()}: not finite")
        return Ended(i, final, bool(terminated), False, self.returns[i], self.lengths[i])


class EnvironmentBatch(Batch):
    """Environments stepped one after the other."""

    slots: list[EnvironmentSlot]

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, render_mode: str | None = None) -> None:
        super().__init__(config, task, [EnvironmentSlot(config, task, n, render_mode) for n in range(low, high)])
        self._skip_bad = config.skip_bad_episodes
        self._see = self._see_vector if self.observation.plain else self._see_leaves
        self._steps = [slot.step for slot in self.slots]

    def begin(self, episode: int) -> None:
        for i in range(len(self.slots)):
            self._begin(i, episode)

    def step(self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> list[Ended]:
        ended: list[Ended] = []
        row_rewards, row_terminated, row_truncated = [], [], []
        for i, action in enumerate(actions):
            try:
                reward, terminates, truncates = _LEFT_ALONE if action is None else self._advance(i, action)
                if terminates or truncates:
                    ended.append(self._ended(i, terminates))
            except EnvironmentFault as fault:
                reward, terminates, truncates = 0.0, False, True
                ended.append(self._give_up(i, fault))
            else:
                if terminates or truncates:
                    self._begin_next(i)
            row_rewards.append(reward)
            row_terminated.append(terminates)
            row_truncated.append(truncates)
        for i, broken in self._not_finite():
            row_rewards[i], row_terminated[i], row_truncated[i] = 0.0, False, True
            ended.append(self._give_up(i, broken))
        if self._hidden:
            self.obs[0][:, self._hidden] = 0.0
        rewards[:] = row_rewards
        terminated[:] = row_terminated
        truncated[:] = row_truncated
        return ended

    def replay(self, i: int, number: int, actions: list, expected_hash: int, progress: np.ndarray) -> bool:
        self.begin_one(i, number)
        try:
            for action in actions:
                progress += 1
                _, terminated, truncated = self._advance(i, action)
                if terminated or truncated:  # an episode in progress has not ended
                    self.begin_one(i, number + 1)
                    return False
        except EnvironmentFault as fault:
            self._give_up(i, fault)
            return False
        self.obs[0][i, self._hidden] = 0.0
        if self.hashes[i] == expected_hash:
            return True
        self.begin_one(i, number + 1)
        return False

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """One step of one environment; returns (reward, terminated, truncated)."""
        try:
            observation, reward, terminated, truncated, _ = self._steps[i](action)
            number = float(reward)
            self._see(i, observation, zlib.crc32(_DOUBLE.pack(number), self.hashes[i]))
        except Exception as error:
            rule = "step must return (observation, reward, terminated, truncated, info)"
            raise self._fault(i, f"step raised {error!r}; {rule}") from error
        if not math.isfinite(number):
            raise self._fault(i, f"rewarded {number}: not finite")
        self.returns[i] += number
        self.lengths[i] += 1
        return number, terminated, truncated

    def _see_vector(self, i: int, observation: Any, hashed: int) -> None:
        """Take over an observation that is one vector, and its hash."""
        (row,) = self._rows[i]
        if getattr(observation, "shape", None) != row.shape:  # assignment alone would broadcast a single number
            shape = np.shape(observation)
            if shape != row.shape:
                raise ValueError(f"observation of shape {shape}, but its space says {row.shape}")
        row[:] = observation
        self.hashes[i] = zlib.crc32(np.ascontiguousarray(observation).data, hashed)

    def _see_leaves(self, i: int, observation: Any, hashed: int) -> None:
        """Take over an observation leaf by leaf, and the hash of all of them."""
        for leaf, row in zip(self.observation.leaves, self._rows[i], strict=True):
            value = leaf.of(observation)
            row[...] = leaf.stored(value)
            hashed = zlib.crc32(np.ascontiguousarray(value).data, hashed)
        self.hashes[i] = hashed

    def begin_one(self, i: int, episode: int) -> None:
        self._see(i, self.slots[i].begin(episode), 0)
        self.obs[0][i, self._hidden] = 0.0
        self.returns[i] = 0.0
        self.lengths[i] = 0
        for part in self._rows[i]:
            if part.dtype == np.float32 and not np.isfinite(part).all():
                raise self._fault(i, f"began with the observation {part.tolist()}: not finite")

    def _begin_next(self, i: int) -> None:
        self._begin(i, self.slots[i].episode + 1)

    def _begin(self, i: int, episode: int) -> None:
        """Begin an episode, or the one after it where bad ones are skipped and this cannot begin."""
        try:
            self.begin_one(i, episode)
        except EnvironmentFault as fault:
            self._give_up(i, fault)

    def _give_up(self, i: int, fault: EnvironmentFault) -> Ended:
        """Go on after a step that failed, with the next episode of an environment made anew.

        Raises:
            EnvironmentFault: `fault`, unless the configuration says to skip bad episodes; and where none of the next
                START_ATTEMPTS episodes can begin.
        """
        if not self._skip_bad:
            raise fault
        log.warning("%s; skipped", fault)
        slot = self.slots[i]
        slot.close()
        slot.make()
        self._steps[i] = slot.step
        for attempts_left in reversed(range(START_ATTEMPTS)):
            try:
                self.begin_one(i, slot.episode + 1)
                break
            except EnvironmentFault as again:
                if not attempts_left:
                    raise
                log.warning("%s; skipped", again)
        return Ended(i, (), False, True, 0.0, 0)

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
