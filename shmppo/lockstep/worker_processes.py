"""The worker processes of a run: they are started, watched while the learner waits for them, and replaced if they fail.

Each worker has its own row of commands, its own pair of queues, and its own sentinel. Workers share no lock, so a
killed worker blocks no other.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch.multiprocessing

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.errors import ConfigError, ShmppoError, WorkerError
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.fork_server import HANG_SIGNAL, STACK_SIGNAL, kill_group, kill_with_children, start_fork_server
from shmppo.lockstep.mailbox import BLOCK_SECONDS, Failed, LearnerMailbox, PipeQueue, Ready, Stop, WakeUp
from shmppo.lockstep.pool import UPDATE_COMMANDS, Command, Evaluate, StepOptimizer
from shmppo.lockstep.worker import WorkerSetup, run_worker
from shmppo.parallel.spin import SpinWait
from shmppo.sampling.acting_server import ActingServer
from shmppo.utils.user_code import main_is_importable

log = logging.getLogger(__name__)

WORKER_NAME = "worker-"
"""Beginning of the name of a worker process."""
UNGUARDED_MAIN = 77
"""Exit code of a process that runs the main script instead of importing it, because the script has no guard
`if __name__ == "__main__":`."""
MAX_RESTARTS = 3  # replacements of a worker within the window; one more failure ends the run
RESTART_WINDOW_SECONDS = 3600.0
MIN_START_SECONDS = 120.0
"""Minimum timeout of a worker's start, because environments may compile code or load models."""


def start_context() -> Any:
    """Return the multiprocessing context of a run, and start its fork server.

    Raises:
        ConfigError: if this process may not start processes.
    """
    require(
        not torch.multiprocessing.current_process().daemon,
        "a daemonic process, such as one of multiprocessing.Pool, cannot start workers; use --workers 0",
    )
    if not main_is_importable():
        vars(sys.modules["__main__"]).pop("__file__", None)  # "<stdin>", which workers would try to import
    start_fork_server()
    return torch.multiprocessing.get_context("forkserver")


class WorkerProcess:
    """One worker process with its two queues.

    Attributes:
        index: w, index of the worker.
        commands: queue to the worker.
        reports: queue from the worker.
        handles: what `multiprocessing.connection.wait` waits for: a report, or the end of the process.
    """

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        """Start the process.

        Args:
            context: from `start_context`.

        Raises:
            OSError: if the system cannot start another process.
        """
        self.index = setup.index
        self._ended = False
        self.commands, self.reports = PipeQueue(context), PipeQueue(context)
        arguments = setup, self.commands, self.reports, dict(os.environ)
        name = f"{WORKER_NAME}{setup.index}"
        self.process = context.Process(target=run_worker, args=arguments, name=name, daemon=True)
        self.process.start()
        self.handles = [self.reports.reader, self.process.sentinel]

    def send(self, number: int) -> None:
        """Send a signal to the process, and give it a moment to handle it."""
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.process.pid, number)
            time.sleep(0.1)

    def end(self, deadline: float) -> None:
        """Wait for the process until `deadline` (monotonic seconds), then kill it, and reap it. Safe to call twice."""
        if self._ended:
            return
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            kill_with_children(self.process.pid)
            self.process.join()
        kill_group(self.process.pid)
        self._ended = True
        self.process.close()
        self.commands.close()
        self.reports.close()


class WorkerProcesses:
    """All worker processes of a run.

    Attributes:
        restarts: number of workers that were replaced so far.
        changed_values: sentences about values in modules that differ between the program and its workers.
        server: acts for all environments of the rank. None: each process acts for its own.
    """

    def __init__(
        self,
        config: TrainConfig,
        setups: Sequence[WorkerSetup],
        mailbox: LearnerMailbox,
        progress: np.ndarray,
        actions: ActionLog,
        mark_lost: Callable[[int], None],
    ) -> None:
        """Start all workers.

        Args:
            setups: one per worker. Empty: there are no workers.
            mailbox: sends commands to them.
            progress: [W, 2], `Control.progress`.
            actions, mark_lost: see `WorkerPool`.

        Raises:
            OSError: if the system cannot start as many processes.
        """
        self.restarts = 0
        self.changed_values: set[str] = set()
        self.server: ActingServer | None = None
        self._setups, self._actions, self._mark_lost = setups, actions, mark_lost
        self._config, self._spins = config, any(setup.spins for setup in setups)
        self._start_seconds = max(MIN_START_SECONDS, config.worker_timeout)
        self._mailbox, self._progress = mailbox, progress
        self._spin_wait = SpinWait()
        self._deaths: dict[int, list[float]] = {w: [] for w in range(len(setups))}
        self._begun: set[int] = set()  # workers whose environments have begun or have been restored
        self._context = start_context() if setups else None
        self._workers: dict[int, WorkerProcess] = {}
        try:
            for w in range(len(setups)):
                self._start(w)
        except BaseException:  # the process limit is reached, or Ctrl-C: end the workers that run already
            self.close(grace=0.0)
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers.values()]

    def restart(self, task: EnvSpec) -> None:
        """Replace all workers by others with this description of the environments. Errors: see `wait_ready`."""
        self._setups = [dataclasses.replace(setup, task=task) for setup in self._setups]
        self._begun.clear()
        for worker in self._workers.values():
            worker.end(deadline=0.0)
        for w in self._workers:
            self._start(w)
        self.wait_ready(self._workers)

    def _must_restore(self, index: int) -> bool:
        """Whether a new worker has to restore the episodes of its environments instead of beginning the first ones."""
        return self._actions.iteration > 0 or index in self._begun

    def _start(self, index: int) -> None:
        """Start worker `index`. It begins the first episodes of its environments, or restores those in progress."""
        setup = self._setups[index]
        episodes = self._actions.episodes(setup.part.columns) if self._must_restore(index) else None
        setup = dataclasses.replace(setup, iteration=self._actions.iteration, episodes=episodes)
        self._workers[index] = WorkerProcess(self._context, setup)
        self._mailbox.connect(index, self._workers[index].commands)

    def wait_ready(self, indices: Iterable[int]) -> None:
        """Wait until workers have begun or restored their episodes. Replace those that fail before.

        Raises:
            ShmppoError: if a worker raises while it begins its first episodes. Another worker would raise again.
            WorkerError: if a worker has been replaced too often.
        """
        while indices:
            failed = []
            for w, report in self._reports(indices, self._start_seconds):
                if isinstance(report, Ready):
                    for n in report.lost:
                        self._mark_lost(n)
                    self._begun.add(w)
                    if report.changed_value is not None:
                        self.changed_values.add(report.changed_value)
                    continue
                error = report.error(w) if isinstance(report, Failed) else report
                assert error is not None, "the worker has no command yet"
                begins = not (self._must_restore(w) or self._config.skip_bad_episodes)
                if isinstance(report, Failed) and begins:
                    raise error
                self._replace(w, error)
                failed.append(w)
            indices = failed

    def wait_replacing_failed(self, indices: Iterable[int], command: Command, number: int) -> None:
        """Wait until workers have carried out a command. Replace those that die or stall, and send it again.

        number: of the command.

        Raises:
            ShmppoError: if a worker raises. It would raise again.
            WorkerError: if a worker has been replaced too often, or dies or stalls after it has begun its part of an
                optimizer step, which cannot be repeated.
        """
        if (
            self._spins
            and isinstance(command, UPDATE_COMMANDS)
            and self._spin_wait(lambda: self._mailbox.is_completed(number))
        ):
            return
        # An evaluation may make environments, as a start does.
        seconds = self._start_seconds if isinstance(command, Evaluate) else self._config.worker_timeout
        while indices:
            failed = []
            for w, report in self._reports(indices, seconds, number):
                if isinstance(report, Failed):
                    raise report.error(w)
                if isinstance(report, WorkerError):
                    self._workers[w].end(deadline=0.0)  # until now, it may still have acknowledged the command
                    steps = isinstance(command, StepOptimizer) and self._setups[w].part.has(StepOptimizer)
                    begun = steps and self._mailbox.has_begun(w, number)
                    if begun and not self._mailbox.is_acknowledged(w, number):
                        del self._workers[w]
                        raise report
                    self._replace(w, report)
                    failed.append(w)
            self.wait_ready(failed)
            self._mailbox.send_again(failed)
            indices = failed

    def _replace(self, index: int, error: ShmppoError) -> None:
        """End a failed worker and start another one in its place, which is not ready yet.

        The new worker overwrites what the old one has written in this phase. The old process is killed and reaped
        first. Otherwise a process that was only stopped could continue and write as well.

        Args:
            error: the failure of the worker.

        Raises:
            ShmppoError: `error`, if this worker has been replaced too often.
        """
        self._workers[index].end(deadline=0.0)
        now = time.monotonic()
        deaths = [t for t in self._deaths[index] if t > now - RESTART_WINDOW_SECONDS]
        self._deaths[index] = [*deaths, now]
        if len(deaths) >= MAX_RESTARTS:
            del self._workers[index]
            raise error
        log.warning("%s; starting another worker (%d of %d)", error, len(deaths) + 1, MAX_RESTARTS)
        self.restarts += 1
        self._start(index)

    def _reports(
        self, indices: Iterable[int], timeout: float, number: int | None = None
    ) -> Iterator[tuple[int, Ready | Failed | WorkerError | None]]:
        """Wait for one report of each worker, and yield them in the order of their arrival.

        Args:
            timeout: seconds after which a worker without progress is stalled (see `StallDetector`).
            number: of the command that they carry out. None: they start.

        Yields:
            (index of the worker, report). The report is None if the worker has acknowledged its command, Failed if it
            has raised, and a WorkerError if it has died or stalled.
        """
        waiting = {w: self._workers[w] for w in indices}
        interval = timeout / 4
        detector = StallDetector(self._progress, timeout, interval)
        while waiting:
            if number is not None and self.server is not None and (asking := self._mailbox.asking(waiting)):
                self.server.act(asking)
                self._mailbox.answer(asking)
            ready, reported = self._block(list(waiting.values()), interval, number), False
            for index, worker in list(waiting.items()):
                report: Ready | WakeUp | Failed | WorkerError | None
                if number is not None and self._mailbox.is_acknowledged(index, number):
                    report = None
                elif any(handle in ready for handle in worker.handles):
                    report = _next_report(worker, starting=number is None)
                else:
                    continue
                if isinstance(report, WakeUp):  # the next round of the loop checks for the acknowledgement
                    continue
                del waiting[index]
                reported = True
                yield index, report
            if reported:  # the caller may have taken long, so look for the reports of the others first
                continue
            hanging, stalled = detector.look([*waiting])
            for w in hanging:
                log.warning("worker %d has made no progress for %g s", w, timeout)
                waiting[w].send(HANG_SIGNAL)
            for w in stalled:
                worker = waiting.pop(w)
                worker.send(STACK_SIGNAL)
                error = WorkerError(
                    f"worker {w} (pid {worker.process.pid}) has made no progress for {timeout:g} s; run.log may show "
                    "where it is; if its environment is that slow, raise --worker-timeout"
                )
                yield w, error

    def _block(self, workers: list[WorkerProcess], timeout: float, number: int | None) -> list[Any]:
        """Block until a worker has sent a report or ended, or `timeout` seconds have passed.

        With the number of a command, return also when a worker has acknowledged it, and at the latest after
        BLOCK_SECONDS.

        Returns:
            The handles that are ready.
        """
        handles = [handle for worker in workers for handle in worker.handles]
        if number is None:
            return wait(handles, timeout)
        with self._mailbox.blocking():
            indices = [worker.index for worker in workers]
            if any(self._mailbox.is_acknowledged(index, number) for index in indices):
                return []
            if self.server is not None and self._mailbox.asking(indices):
                return []
            return wait(handles, min(timeout, BLOCK_SECONDS))

    def close(self, grace: float) -> None:
        """Ask every worker to stop, kill those that still run after `grace` seconds, and reap all."""
        for worker in self._workers.values():
            with suppress(OSError):  # it has ended already
                worker.commands.put(Stop())
        deadline = time.monotonic() + grace
        for worker in self._workers.values():
            worker.end(deadline)
        self._workers = {}


def _next_report(worker: WorkerProcess, *, starting: bool) -> Ready | WakeUp | Failed | WorkerError:
    """Read the next report of a worker of which a handle is ready. Return a WorkerError if it died.

    starting: whether the worker has not been ready yet.

    Raises:
        ConfigError: if the worker has found that the main script has no guard (see `UNGUARDED_MAIN`).
    """
    # A worker that raises sends its report before it ends, so look for a report first.
    if not worker.reports.has_message():
        worker.process.join()
        if worker.process.exitcode == UNGUARDED_MAIN:
            raise ConfigError(
                "the main script calls train() or resume() again when a worker imports it; put the call under "
                '`if __name__ == "__main__":`'
            )
        reason = _exit_reason(worker.process.exitcode)
        if starting:
            return WorkerError(f"worker {worker.index} died while it started: {reason}")
        return WorkerError(f"worker {worker.index} died: {reason}")
    report = worker.reports.get()
    assert isinstance(report, (Ready, WakeUp, Failed)), report
    return report


def _exit_reason(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by signal {-exitcode}" + (", as when memory runs out" if exitcode == -signal.SIGKILL else "")
    return f"exit code {exitcode}"


class StallDetector:
    """Finds those without progress among the workers that the learner waits for.

    A worker hangs if its row of `Control.progress` has not changed for `timeout` seconds, so it has to give up the call
    of its environment. If that does not help within another `interval`, it is stalled.
    """

    def __init__(self, progress: np.ndarray, timeout: float, interval: float) -> None:
        """Create a detector that has seen no worker yet.

        Args:
            progress: [W, 2], `Control.progress`.
            timeout: in seconds.
            interval: in seconds. A longer gap between two calls counts as this, because this process has not run.
        """
        self._progress, self._seen = progress, progress.copy()
        self._timeout, self._interval = timeout, interval
        self._looked_at = time.monotonic()
        self._unchanged = np.zeros(len(progress))  # [W], seconds without progress

    def look(self, workers: list[int]) -> tuple[list[int], list[int]]:
        """Return those of `workers` that hang since the last call, and those that are stalled."""
        now, latest = time.monotonic(), self._progress.copy()
        elapsed, before = min(now - self._looked_at, self._interval), self._unchanged
        self._unchanged = np.where((latest != self._seen).any(axis=1), 0.0, before + elapsed)
        self._looked_at, self._seen = now, latest
        hanging = (before < self._timeout) & (self._unchanged >= self._timeout)
        stalled = self._unchanged >= self._timeout + self._interval
        return [w for w in workers if hanging[w]], [w for w in workers if stalled[w]]
