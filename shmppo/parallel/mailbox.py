"""Commands to workers and their acknowledgements: numbers in shared memory, and a queue to wake a process that blocks.

Each worker has a row of `Control`. The learner writes a command there and then raises its sequence number. The worker
carries the command out and then acknowledges this number. Between the minibatches of an update both sides spin for up
to 2 ms before they block, because a process that blocks needs 50 to 100 µs to wake up.

A message through a queue is small on purpose: one atomic write to a pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np

from shmppo.parallel.shared_buffers import Control

SPIN_SECONDS = 2e-3
"""Longer than the pause between two minibatches, and too short to load a core noticeably."""
_LOCK = threading.Lock()
_yield_core: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))  # macOS has no sched_yield
BLOCK_SECONDS = 0.2
"""The longest block before a process looks again by itself. A wake-up is missed only if a processor reorders a read
before an earlier write."""
MAX_TEXT = 3000
"""Characters of a traceback in a message, so that the message stays below PIPE_BUF (4096 bytes on Linux)."""


def fence() -> None:
    """Order memory accesses: other processes see earlier writes before later ones, on every processor."""
    with _LOCK:
        pass


def spin_wait(done: Callable[[], bool], seconds: float = SPIN_SECONDS) -> bool:
    """Wait for `done` without blocking, but let other processes use the core.

    Returns:
        Whether it came within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        _yield_core()
    return True


class PipeQueue:
    """Messages from one process to one other, in order. Nothing is locked, so a killed process blocks no other."""

    def __init__(self, context: Any) -> None:
        """context: of multiprocessing; the queue can be passed to a process that this context starts."""
        self.reader, self._writer = context.Pipe(duplex=False)

    def put(self, message: Any) -> None:
        """Send a message. Raises OSError if the queue is closed."""
        self._writer.send(message)

    def get(self) -> Any:
        """Wait for a message. Raises EOFError or OSError if it is incomplete."""
        return self.reader.recv()

    def has_message(self) -> bool:
        """Whether there is something to read."""
        return bool(self.reader.poll())

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


class Collect(NamedTuple):
    """Command: collect one rollout of the worker's own environments with the weights of `version`."""

    version: int
    iteration: int


class ComputeGradients(NamedTuple):
    """Command: compute the gradients of the worker's own shards with the weights of `version`."""

    version: int
    epoch: int
    minibatch: int


class RefreshStates(NamedTuple):
    """Command: recompute the stored states of the worker's own environments with the weights of `version`."""

    version: int


Command = Collect | ComputeGradients | RefreshStates
_KINDS: tuple[type[Command], ...] = (Collect, ComputeGradients, RefreshStates)


@dataclass(frozen=True)
class WakeUp:
    """Message: there is a command, or an acknowledgement, in shared memory."""


@dataclass(frozen=True)
class Stop:
    """Message: end the process."""


@dataclass(frozen=True)
class Ready:
    """Message: the worker has made and, after a restart, restored its environments."""

    lost: tuple[int, ...] = ()
    """Global indices of environments that could not be restored. They began their next episode instead."""


@dataclass(frozen=True)
class Failed:
    """Message: the worker raised an exception. It ends after this message."""

    traceback: str
    env_index: int | None
    """Global index of the environment that raised, if one did."""


Report = WakeUp | Ready | Failed


@contextmanager
def _announce_block(flag: np.ndarray) -> Iterator[None]:
    """Ask to be woken up. Inside, check again before blocking: an earlier write did not see the flag."""
    flag[0] = 1
    fence()
    yield
    flag[0] = 0


class LearnerMailbox:
    """The learner's side: sends commands to all workers."""

    def __init__(self, control: Control) -> None:
        self._commands, self._acknowledged = control.commands, control.acknowledged
        self._worker_blocked, self._learner_blocked = control.worker_blocked, control.learner_blocked
        self._queues: dict[int, PipeQueue] = {}

    def connect(self, worker: int, queue: PipeQueue) -> None:
        """Name the queue that wakes a worker up; a new process has a new one."""
        self._queues[worker] = queue

    def sequence_number(self, worker: int) -> int:
        """The number of commands sent to a worker so far."""
        return int(self._commands[worker, 0])

    def send(self, worker: int, command: Command) -> None:
        """Send a worker a command, and wake it up if it blocks."""
        row = self._commands[worker]
        row[1] = _KINDS.index(type(command))
        row[2 : 2 + len(command)] = command
        fence()
        row[0] += 1
        fence()
        if self._worker_blocked[worker]:
            # A queue without a reader belongs to a dead worker, which the learner detects by its sentinel.
            with contextlib.suppress(OSError):
                self._queues[worker].put(WakeUp())

    def is_acknowledged(self, worker: int) -> bool:
        """Whether a worker has carried out its last command."""
        if self._acknowledged[worker] != self._commands[worker, 0]:
            return False
        fence()
        return True

    def all_acknowledged(self) -> bool:
        """Whether all workers have carried out their last commands."""
        if (self._acknowledged != self._commands[:, 0]).any():
            return False
        fence()
        return True

    def blocking(self) -> AbstractContextManager[None]:
        """Surround a wait for the workers' queues. Check `is_acknowledged` again inside."""
        return _announce_block(self._learner_blocked)


class WorkerMailbox:
    """A worker's side: receives commands and acknowledges them."""

    def __init__(
        self,
        control: Control,
        worker: int,
        sequence_number: int,
        commands: PipeQueue,
        reports: PipeQueue,
        *,
        spins: bool,
    ) -> None:
        """sequence_number: of the last command to a predecessor; spins: whether there is a core for each worker."""
        self._row = control.commands[worker]
        self._acknowledged = control.acknowledged[worker : worker + 1]
        self._blocked = control.worker_blocked[worker : worker + 1]
        self._learner_blocked = control.learner_blocked
        self._sequence_number = sequence_number
        self._commands, self._reports = commands, reports
        self._spins = spins
        self._in_update = False

    def receive(self) -> Command | None:
        """Wait for the next command. None: the worker has to end, because the learner asks for it or is gone."""
        if self._spins and self._in_update:
            spin_wait(self._has_command)
        while not self._has_command():
            with _announce_block(self._blocked):
                if not self._has_command() and self._must_end():
                    return None
        fence()
        self._sequence_number += 1
        _, kind, *arguments = self._row.tolist()
        command_type = _KINDS[kind]
        command: Command = command_type(*arguments[: len(command_type._fields)])
        # The command for the next minibatch follows within a millisecond.
        self._in_update = isinstance(command, ComputeGradients)
        return command

    def _has_command(self) -> bool:
        return bool(self._row[0] != self._sequence_number)

    def _must_end(self) -> bool:
        """Block until there is a message, the learner ends, or BLOCK_SECONDS pass."""
        learner = multiprocessing.parent_process()
        assert learner is not None
        waited_for: list[Any] = [self._commands.reader, learner.sentinel]
        ready = wait(waited_for, BLOCK_SECONDS)
        if self._commands.reader in ready:
            return isinstance(self._commands.get(), Stop)
        return bool(ready)

    def acknowledge(self) -> None:
        """Report that the last command is carried out, and wake the learner up if it blocks."""
        fence()
        self._acknowledged[0] = self._sequence_number
        fence()
        if self._learner_blocked[0]:
            self._reports.put(WakeUp())
