"""Orders to workers and their answers, as numbers in shared memory; who sleeps on a queue is rung through it.

Each worker has a row: the learner writes an order and then its turn, the worker carries it out and then answers with
that turn. Between the minibatches of an update both look for the other's number without sleeping.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np

from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.parallel.spin_wait import fence, spin_wait

LONGEST_TEXT = 3000  # characters; with its envelope below PIPE_BUF (4096 bytes on Linux)


class Collect(NamedTuple):
    """Order: sample one rollout with the weights of `version` into the columns that the worker owns."""

    version: int
    iteration: int


class Gradients(NamedTuple):
    """Order: compute the gradients of the shards that the worker owns, with the weights of `version`."""

    version: int
    epoch: int
    minibatch: int


class Refresh(NamedTuple):
    """Order: bring the stored states of the worker's own columns up to date with the weights of `version`."""

    version: int


@dataclass(frozen=True)
class Ring:
    """Wake up: there is an order, or an answer, in shared memory."""


@dataclass(frozen=True)
class Stop:
    """End the process."""


@dataclass(frozen=True)
class Ready:
    """The worker's environments are made, and where they have to be."""

    lost: tuple[int, ...] = ()
    """Global indices of environments that a replay did not bring back; their next episode was begun."""


@dataclass(frozen=True)
class Failed:
    """The worker raised; it ends after this message."""

    traceback: str
    env_index: int | None
    """Global index of the environment that raised, if one did."""


Order = Collect | Gradients | Refresh


NAP_SECONDS = 0.2
"""Until a sleeper looks by itself. A ring is missed only where a processor lets a read pass an earlier write."""
_KINDS: tuple[type[Order], ...] = (Collect, Gradients, Refresh)


@contextmanager
def _asleep(flag: np.ndarray) -> Iterator[None]:
    """Ask to be rung. To be looked again inside: what was written before the flag was seen rings nobody."""
    flag[0] = 1
    fence()
    yield
    flag[0] = 0


class LearnerMailbox:
    """The learner's side."""

    def __init__(self, arena: SharedBuffers) -> None:
        self._orders, self._answers = arena.array("orders"), arena.array("answers")
        self._worker_asleep, self._asleep = arena.array("worker_asleep"), arena.array("learner_asleep")

    def turn(self, worker: int) -> int:
        """The number of orders given to a worker so far."""
        return int(self._orders[worker, 0])

    def give(self, worker: int, order: Order, ring: Callable[[], None]) -> None:
        """Give a worker an order; `ring` puts Ring into its queue."""
        row = self._orders[worker]
        row[1] = _KINDS.index(type(order))
        row[2 : 2 + len(order)] = order
        fence()
        row[0] += 1
        fence()
        if self._worker_asleep[worker]:
            ring()

    def answered(self, worker: int) -> bool:
        """Whether a worker has carried its last order out."""
        if self._answers[worker] != self._orders[worker, 0]:
            return False
        fence()
        return True

    def settled(self) -> bool:
        """Whether all workers have carried their last orders out."""
        if (self._answers != self._orders[:, 0]).any():
            return False
        fence()
        return True

    def asleep(self) -> AbstractContextManager[None]:
        """Around a wait for the workers' queues; `answered` is to be asked again inside."""
        return _asleep(self._asleep)


class WorkerMailbox:
    """A worker's side."""

    def __init__(
        self, arena: SharedBuffers, index: int, turn: int, commands: Any, reports: Any, *, spins: bool
    ) -> None:
        """turn: orders given to predecessors; spins: whether there are cores enough to wait awake."""
        self._row = arena.array("orders")[index]
        self._answer = arena.array("answers")[index : index + 1]
        self._asleep = arena.array("worker_asleep")[index : index + 1]
        self._learner_asleep = arena.array("learner_asleep")
        self._turn = turn
        self._commands, self._reports = commands, reports
        self._spins = spins
        self._in_update = False

    def next(self) -> Order | None:
        """The next order; None to end: the learner says so, or it is gone."""
        if self._spins and self._in_update:
            spin_wait(self._has_order)
        while not self._has_order():
            with _asleep(self._asleep):
                if not self._has_order() and self._told_to_end():
                    return None
        fence()
        self._turn += 1
        _, kind, *numbers = self._row.tolist()
        order_type = _KINDS[kind]
        order = order_type(*numbers[: len(order_type._fields)])
        self._in_update = isinstance(order, Gradients)  # the next minibatch's follows within a millisecond
        return order

    def _has_order(self) -> bool:
        return bool(self._row[0] != self._turn)

    def _told_to_end(self) -> bool:
        """Wait for something in the queue, but not for ever."""
        learner = multiprocessing.parent_process()
        assert learner is not None
        ready = wait([self._commands._reader, learner.sentinel], NAP_SECONDS)
        if self._commands._reader in ready:
            return isinstance(self._commands.get(), Stop)
        return bool(ready)

    def answer(self) -> None:
        """The order is carried out."""
        fence()
        self._answer[0] = self._turn
        fence()
        if self._learner_asleep[0]:
            self._reports.put(Ring())
