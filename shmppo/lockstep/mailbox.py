"""Commands to workers and their acknowledgements: numbers in shared memory, and queues to wake up blocked processes.

Commands are numbered. Each worker has a row of `Control`, where the learner writes up to three commands at once. The
worker carries them out one after the other, and acknowledges the number of each. It begins a second or third one when
all workers and the learner have completed the one before, so the learner need not tell it to.

A process that waits blocks on a queue, and the other process wakes it up with a message. Waking up takes 50 to 100 µs,
so in an update, and between a rollout and an update, both processes first spin for some milliseconds if each has a
core.

A message is small enough for one atomic write to a pipe, so a process that is killed leaves no partial message.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal, get_args

import numpy as np

from shmppo.envs.vector_env import Progress
from shmppo.errors import ConfigError, EnvError, OriginalError, ShmppoError, WorkerError
from shmppo.lockstep.pool import SOON_FOLLOWED, Command
from shmppo.parallel.shared_buffers import Control
from shmppo.parallel.spin import SpinWait, fence
from shmppo.utils.user_code import describe_error, user_traceback

BLOCK_SECONDS = 0.2
"""Maximum time to block before a process checks again. A message to wake it up can be missing if the processor executes
a read before an earlier write."""
MAX_MESSAGE, MAX_DETAILS = 900, 2700
"""Maximum sizes of the texts in a `Failed` message, in bytes. The message then has less than PIPE_BUF bytes (4096 on
Linux), so one atomic write sends it."""


class PipeQueue:
    """A queue of messages from one process to another. It has no lock, so a killed process blocks no other.

    Attributes:
        reader: the connection to read from. `multiprocessing.connection.wait` can wait for it.
    """

    def __init__(self, context: Any) -> None:
        """Create a pipe.

        Args:
            context: a multiprocessing context. The queue can be passed to a process that this context starts.
        """
        self.reader, self._writer = context.Pipe(duplex=False)

    def put(self, message: Any) -> None:
        """Send a message. Raises OSError if the queue is closed."""
        self._writer.send(message)

    def get(self) -> Any:
        """Wait for a message and return it.

        Raises:
            EOFError, OSError: if the queue is closed, or if the message is incomplete.
        """
        return self.reader.recv()

    def has_message(self) -> bool:
        """Whether `get` finds something to read."""
        return bool(self.reader.poll())

    def close(self) -> None:
        """Close both ends in this process. Safe to call twice."""
        self.reader.close()
        self._writer.close()


_KINDS: tuple[type[Command], ...] = get_args(Command)


@dataclass(frozen=True)
class WakeUp:
    """Message: shared memory contains a new command or a new acknowledgement."""


@dataclass(frozen=True)
class Stop:
    """Message to a worker: end the process."""


@dataclass(frozen=True)
class Ready:
    """Message of a worker: its environments have begun or, after a restart of the worker, have been restored."""

    lost: tuple[int, ...] = ()
    """Indices of environments that could not be restored. They have begun their next episode instead."""
    changed_value: str | None = None
    """A sentence about a value that differs from that in the program that has started the run. None: there is none."""


@dataclass(frozen=True)
class Failed:
    """Message of a worker: it raised an exception, and ends after this message."""

    kind: Literal["environment", "config", "shmppo", "other"]
    """Whether it raised an EnvError, a ConfigError, another error of this package, or anything else."""
    message: str
    """What happened, in one line of at most MAX_MESSAGE bytes."""
    details: str
    """The end of the traceback, at most MAX_DETAILS bytes."""
    env_index: int = 0
    """Index of the environment that raised, if `kind` is "environment"."""

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """Describe an exception. The end of a long message and the beginning of a long traceback are cut off."""
        if isinstance(error, EnvError):
            return cls("environment", *_shortened(error.message, error.details), error.env_index)
        if isinstance(error, ShmppoError):
            texts = _shortened(str(error), error.details)
            return cls("config", *texts) if isinstance(error, ConfigError) else cls("shmppo", *texts)
        return cls("other", *_shortened(describe_error(error), user_traceback(error)))

    def error(self, worker: int) -> ShmppoError:
        """Return what the learner raises: the same error, with the traceback of the worker above it."""
        error: ShmppoError
        if self.kind == "environment":
            error = EnvError(self.env_index, self.message, details=self.details)
        elif self.kind == "other":
            error = WorkerError(f"worker {worker} failed: {self.message}", details=self.details)
        else:
            error = (ConfigError if self.kind == "config" else ShmppoError)(self.message, details=self.details)
        if self.details:
            error.__cause__ = OriginalError(f"\n{self.details}")
        return error


def _shortened(message: str, details: str) -> tuple[str, str]:
    first = message.encode(errors="backslashreplace")[:MAX_MESSAGE]
    last = details.encode(errors="backslashreplace")[-MAX_DETAILS:]
    return first.decode(errors="ignore"), last.decode(errors="ignore")


class LearnerEnded(BaseException):
    """Ends a worker that waits for actions. The code of an environment must not catch it."""


@contextmanager
def _announce_block(flag: np.ndarray) -> Iterator[None]:
    """Set the flag that asks the other process for a message.

    While the context is open, check the condition again before blocking. The other process may have written shortly
    before the flag was set.
    """
    flag[0] = 1
    fence()
    yield
    flag[0] = 0


def _is_completed(control: Control, number: int) -> bool:
    """Whether all workers that have a command with a number have completed it."""
    if ((control.acknowledged < number) & (control.commands[:, 2] >= number)).any():
        return False
    fence()
    return True


class LearnerMailbox:
    """The learner's side: sends commands to all workers."""

    def __init__(self, control: Control) -> None:
        self._control, self._number = control, 0
        self._commands, self._acknowledged = control.commands, control.acknowledged
        self._worker_blocked, self._learner_blocked = control.worker_blocked, control.learner_blocked
        self._asked, self._answered = control.asked, control.answered
        self._queues: dict[int, PipeQueue] = {}

    def connect(self, worker: int, queue: PipeQueue) -> None:
        """Set the queue that wakes up a worker. Each new process has its own queue."""
        self._queues[worker] = queue

    def send(self, workers: list[int], *commands: Command) -> range:
        """Send commands to workers, and wake up those that block. Return the numbers of the commands.

        All workers have the commands before one is woken up. Otherwise, the woken one may take the core of one that
        still spins, for milliseconds.
        """
        numbers = range(self._number + 1, self._number + 1 + len(commands))
        self._number = numbers[-1]
        row = [numbers[0], numbers[-1]]
        for command in commands:
            row += _KINDS.index(type(command)), *command, *[0] * (2 - len(command))
        self._commands[workers, 1 : 1 + len(row)] = row
        self.send_again(workers)
        return numbers

    def send_again(self, workers: list[int]) -> None:
        """Let workers see their commands. A new process begins with the first one that nobody has acknowledged."""
        fence()
        self._commands[workers, 0] += 1
        self.wake_up(workers)

    def complete(self, number: int) -> None:
        """Acknowledge the learner's part of a command."""
        fence()
        self._control.learner_completed[0] = number

    def wake_up(self, workers: list[int]) -> None:
        """Let workers see what was written before, if they block."""
        fence()
        for i in self._worker_blocked[workers].nonzero()[0].tolist():
            # An OSError means that the worker is dead. The learner detects this by its sentinel.
            with contextlib.suppress(OSError):
                self._queues[workers[i]].put(WakeUp())

    def asking(self, workers: Collection[int]) -> list[int]:
        """Return those of `workers` that wait for actions, if they are at least half of them. Otherwise none."""
        found = [w for w in workers if self._asked[w] != self._answered[w]]
        fence()
        return found if 2 * len(found) >= len(workers) else []

    def answer(self, workers: list[int]) -> None:
        """Tell workers that their actions are in the shared memory."""
        fence()
        self._answered[workers] = self._asked[workers]
        self.wake_up(workers)

    def has_begun(self, worker: int, number: int) -> bool:
        """Whether a worker has begun to carry out a command."""
        return bool(self._control.begun[worker] >= number)

    def is_acknowledged(self, worker: int, number: int) -> bool:
        """Whether a worker has carried out a command."""
        if self._acknowledged[worker] < number:
            return False
        fence()
        return True

    def is_completed(self, number: int) -> bool:
        """Whether all workers have carried out a command."""
        return _is_completed(self._control, number)

    def blocking(self) -> AbstractContextManager[None]:
        """Ask workers for a message while the context is open. In it, check `is_acknowledged` again before blocking."""
        return _announce_block(self._learner_blocked)


class WorkerMailbox:
    """A worker's side: receives commands and acknowledges them.

    Attributes:
        is_first: whether the last command that `receive` has returned is the first of those sent at once.
    """

    def __init__(self, control: Control, worker: int, commands: PipeQueue, reports: PipeQueue, *, spins: bool) -> None:
        """Create the mailbox of one worker. The commands sent so far were for the process before it.

        Args:
            spins: whether to spin between minibatches. It needs a core for each worker.
        """
        self._control, self._row = control, control.commands[worker]
        self._begun = control.begun[worker : worker + 1]
        self._acknowledged = control.acknowledged[worker : worker + 1]
        self._blocked = control.worker_blocked[worker : worker + 1]
        self._learner_blocked = control.learner_blocked
        self._times_sent = int(self._row[0])
        self._pending: deque[tuple[int, Command]] = deque()  # commands with their numbers
        self._asked, self._answered = control.asked[worker : worker + 1], control.answered[worker : worker + 1]
        self._asked[:] = self._answered  # the process before it may have asked
        self._commands, self._reports = commands, reports
        self._spin_wait = SpinWait() if spins else None
        self._is_soon = False

    def receive(self) -> Command | None:
        """Wait for the next command.

        Returns:
            None if the worker has to end, because the learner has sent Stop or has ended.
        """
        while not self._pending:  # the process before this one may have completed all commands
            if not self._wait_until(self._has_command):
                return None
            self._times_sent += 1
            self._pending = self._read_commands()
        number, command = self._pending[0]
        self.is_first = number == self._row[1]
        if not (self.is_first or self._wait_until(self._is_my_turn)):
            return None
        self._begun[0] = number
        fence()
        self._is_soon = isinstance(command, SOON_FOLLOWED)
        return command

    def _read_commands(self) -> deque[tuple[int, Command]]:
        """Return the commands in the row with their numbers, without those that an earlier process has completed."""
        _, first, last, *rest = self._row.tolist()
        commands: deque[tuple[int, Command]] = deque()
        for number in range(max(first, int(self._acknowledged[0]) + 1), last + 1):
            kind, *arguments = rest[3 * (number - first) :][:3]
            commands.append((number, _KINDS[kind](*arguments[: len(_KINDS[kind]._fields)])))
        return commands

    def _is_my_turn(self) -> bool:
        """Whether the workers and the learner have completed the command before the next one."""
        before = self._pending[0][0] - 1
        return bool(self._control.learner_completed[0] >= before) and _is_completed(self._control, before)

    def ask(self) -> None:
        """Ask the learner to act, and wait until it has. Raises LearnerEnded if the worker has to end before."""
        fence()
        self._is_soon = False  # other processes may need the core until the learner has acted
        self._asked += 1
        self._notify()
        if not self._wait_until(self._is_answered):
            raise LearnerEnded

    def _is_answered(self) -> bool:
        Progress.counter += 1  # a worker that waits for others is not stalled
        return bool(self._asked[0] == self._answered[0])

    def _wait_until(self, holds: Callable[[], bool]) -> bool:
        """Spin, then block until a condition holds. Return whether it does; otherwise the worker has to end."""
        if self._spin_wait is not None and self._is_soon:
            self._spin_wait(holds)
        while not holds():
            with _announce_block(self._blocked):
                if not holds() and self._must_end():
                    return False
        fence()
        return True

    def _has_command(self) -> bool:
        return bool(self._row[0] != self._times_sent)

    def _must_end(self) -> bool:
        """Block until a message arrives, the learner ends, or BLOCK_SECONDS pass.

        Returns:
            Whether the worker has to end.
        """
        learner = multiprocessing.parent_process()
        assert learner is not None
        handles: list[Any] = [self._commands.reader, learner.sentinel]
        ready = wait(handles, BLOCK_SECONDS)
        if self._commands.reader in ready:
            return isinstance(self._commands.get(), Stop)
        return bool(ready)

    def acknowledge(self) -> None:
        """Acknowledge that the last command has been carried out.

        The last worker wakes up the learner. If each did, it would take the core of one that still works.
        """
        number, _ = self._pending.popleft()
        fence()
        self._acknowledged[0] = number
        fence()
        if _is_completed(self._control, number):
            self._notify()

    def _notify(self) -> None:
        """Wake up the learner if it blocks."""
        fence()
        if self._learner_blocked[0]:
            self._reports.put(WakeUp())
