"""The pool of worker processes: it starts them, sends commands, detects failures, and replaces failed workers.

Each worker has its own row of commands, its own pair of queues, and its own sentinel. Workers share no lock, so a
killed worker blocks no other.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import ConfigError, WorkerError
from shmppo.parallel.mailbox import (
    BLOCK_SECONDS,
    Collect,
    Command,
    ComputeGradients,
    Failed,
    LearnerMailbox,
    Ready,
    RefreshStates,
    Stop,
    WakeUp,
    spin_wait,
)
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.pool import CollectTimes, hint_at_skipping, partition, state_drift
from shmppo.sampling.worker import WorkerSetup
from shmppo.sampling.worker_process import UNGUARDED_MAIN, WorkerProcess, start_context
from shmppo.utils.machine import usable_cores
from shmppo.utils.phase_timer import PhaseTimer

log = logging.getLogger(__name__)

RESTART_WINDOW_SECONDS = 3600.0  # period in which --max-restarts limits the replacements of a worker
MIN_START_SECONDS = 120.0  # minimum timeout of a worker's start, because environments may compile code or load models


class WorkerPool:
    """W worker processes in lock-step.

    In LEARN the learner computes the first of the W parts, and worker 0 stays idle. So W processes are busy, as in
    COLLECT, and with W cores no process waits for a core.

    Signaling seconds are the time that lock-step itself costs. They are the sum of two delays on the monotonic clock:
    - from the learner's command to the start of its execution, as a mean over the processes of the phase;
    - from the end of the last process to the moment at which the learner continues.

    Attributes:
        restarts: number of workers that were replaced so far.
    """

    def __init__(
        self, config: TrainConfig, task: Task, buffers: SharedBuffers, actions: ActionLog, log_file: Path
    ) -> None:
        """Start all workers. They create their environments and restore episodes while the learner continues.

        Args:
            config: of the run.
            task: description of the environment.
            buffers: the shared buffers.
            actions: the episodes to restore, if its iteration is above 0. It is read again at each replacement.
            log_file: file to which the workers append their log records.

        Raises:
            OSError: if the system cannot start as many processes.
        """
        self.restarts = 0
        self._lost: list[int] = []
        self._config = config
        self._actions = actions
        self._rollout, self._timings, self._progress = buffers.rollout, buffers.timings, buffers.control.progress
        self._mailbox = LearnerMailbox(buffers.control)
        self._deaths: dict[int, list[float]] = {w: [] for w in range(config.num_workers)}
        self._context = start_context()
        spins = config.num_workers <= usable_cores()
        self._start_seconds = max(MIN_START_SECONDS, config.worker_timeout)
        self._setup = WorkerSetup(config, task, buffers.fields, buffers.memory, log_file, spins)
        self._workers: list[WorkerProcess] = []
        try:
            for w in range(config.num_workers):
                self._workers.append(self._start(w, restore=actions.iteration > 0))
        except BaseException:  # the process limit is reached, or Ctrl-C: end the workers that run already
            self.close(grace=0.0)
            raise

    def _start(self, index: int, *, restore: bool) -> WorkerProcess:
        """Start worker `index`. With `restore` it restores the episodes of its environments first."""
        config = self._config
        columns = partition(config.num_envs, config.num_workers, index)
        setup = dataclasses.replace(
            self._setup,
            index=index,
            columns=columns,
            shards=partition(config.shards, config.num_workers, index),
            sequence_number=self._mailbox.sequence_number(index),
            iteration=self._actions.iteration,
            episodes=self._actions.episodes(columns) if restore else None,
        )
        worker = WorkerProcess(self._context, setup)
        self._mailbox.connect(index, worker.commands)
        return worker

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def wait_ready(self) -> None:
        """Wait until every worker is ready. Raises WorkerError if one fails or needs too long."""
        for _, report in self._reports(self._workers, self._start_seconds):
            self._accept(report)

    def _accept(self, report: Ready | WorkerError | None) -> None:
        """Handle the first report of a new worker. Raises WorkerError if the worker has failed."""
        if isinstance(report, WorkerError):
            raise report
        assert report is not None, "the worker has no command yet"
        for n in report.lost:
            self._actions.forget(n)
        self._lost.extend(report.lost)

    def pop_lost(self) -> list[int]:
        """See `Pool.pop_lost`."""
        lost, self._lost = self._lost, []
        return lost

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> tuple[Rollout, CollectTimes]:
        """Send Collect to all workers and wait for them. See `Pool.collect`."""
        sent = timer.switch("wait")
        self._send_and_wait(self._workers, Collect(version, iteration))
        now = timer.switch("other")
        timer.add_blocked(now - sent, self._timings.phase_seconds)
        starts, ends = self._timings.command_interval.T
        sync_seconds = float((starts - sent).mean() + (now - ends.max()))
        return self._rollout, CollectTimes(now - sent, self._timings.phase_seconds.sum(axis=1), sync_seconds)

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        """Send RefreshStates to all workers and wait for them. See `Pool.refresh_states`."""
        sent = timer.switch("wait")
        self._send_and_wait(self._workers, RefreshStates(version))
        timer.add_blocked(timer.switch("other") - sent, self._timings.phase_seconds)
        return state_drift(self._rollout)

    def compute_gradients(
        self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer
    ) -> float:
        """Send ComputeGradients to all workers but worker 0, compute the own part, and wait for the workers.

        See `Pool.compute_gradients`.
        """
        others = self._workers[1:]
        sent = timer.switch("wait")
        command = ComputeGradients(version, epoch, minibatch)
        self._send(others, command)
        own_start = timer.switch("gradient")
        own()
        own_end = timer.switch("wait")
        if not (self._setup.spins and spin_wait(self._mailbox.all_acknowledged)):
            self._wait(others, command)
        now = timer.switch("other")
        starts, ends = self._timings.command_interval[1:].T
        delays = (own_start - sent) + float((starts - sent).sum())
        return delays / len(self._workers) + now - float(ends.max(initial=own_end))

    def _send(self, workers: list[WorkerProcess], command: Command) -> None:
        for worker in workers:
            self._mailbox.send(worker.index, command)

    def _send_and_wait(self, workers: list[WorkerProcess], command: Command) -> None:
        self._send(workers, command)
        self._wait(workers, command)

    def _wait(self, workers: list[WorkerProcess], command: Command) -> None:
        """Wait until every worker has acknowledged the command. Replace workers that fail, and send it to them again.

        Raises:
            WorkerError: if a worker has been replaced too often.
        """
        while workers:
            replaced = []
            for worker, report in self._reports(workers, self._config.worker_timeout, commanded=True):
                if isinstance(report, WorkerError):
                    replaced.append(self._replace(worker, report))
            self._send(replaced, command)
            workers = replaced

    def _replace(self, worker: WorkerProcess, error: WorkerError) -> WorkerProcess:
        """End a failed worker and start another one in its place.

        The new worker overwrites what the old one has written in this phase. The old process is killed and reaped
        first. Otherwise a process that was only stopped could continue and write as well.

        Args:
            worker: the failed worker.
            error: its failure.

        Returns:
            The new worker. It is ready.

        Raises:
            WorkerError: `error`, or the failure of a new worker, if this worker has been replaced too often.
        """
        while True:
            worker.end(deadline=0.0)
            now = time.monotonic()
            deaths = [t for t in self._deaths[worker.index] if t > now - RESTART_WINDOW_SECONDS]
            self._deaths[worker.index] = [*deaths, now]
            if len(deaths) >= self._config.max_restarts:
                self._workers = [w for w in self._workers if w is not worker]
                raise error
            log.warning("%s; starting another worker (%d of %d)", error, len(deaths) + 1, self._config.max_restarts)
            self.restarts += 1
            new = self._start(worker.index, restore=True)
            self._workers[self._workers.index(worker)] = worker = new
            try:
                for _, report in self._reports([new], self._start_seconds):
                    self._accept(report)
            except WorkerError as next_error:
                error = next_error
            else:
                return new

    def _reports(
        self, workers: list[WorkerProcess], timeout: float, *, commanded: bool = False
    ) -> Iterator[tuple[WorkerProcess, Ready | WorkerError | None]]:
        """Wait for one report of each worker, and yield them in the order of their arrival.

        Args:
            workers: the workers to wait for.
            timeout: seconds. A worker that sends no report and whose row of `Control.progress` does not change for so
                long is stalled.
            commanded: whether the workers have a command.

        Yields:
            (worker, report). The report is None if the worker has acknowledged its command. It is a WorkerError if the
            worker has failed, died, or stalled.
        """
        waiting = {worker.index: worker for worker in workers}
        unchanged_since, progress = dict.fromkeys(waiting, time.monotonic()), self._progress.copy()
        while waiting:
            ready, reported = self._block(list(waiting.values()), timeout / 4, commanded), False
            for index, worker in list(waiting.items()):
                report: Ready | WorkerError | None = None
                if not (commanded and self._mailbox.is_acknowledged(index)):
                    if not any(handle in ready for handle in worker.handles):
                        continue
                    message = _next_report(worker)
                    if isinstance(message, WakeUp):  # the next round of the loop checks for the acknowledgement
                        continue
                    if isinstance(message, WorkerError) and message.env_index is not None:
                        hint_at_skipping(message, self._config)
                    report = message
                del waiting[index]
                reported = True
                yield worker, report
            if reported:  # the caller may have taken long, so look for the reports of the others first
                continue
            now, latest = time.monotonic(), self._progress.copy()
            for index, worker in list(waiting.items()):
                if (latest[index] != progress[index]).any():
                    unchanged_since[index] = now
                elif now - unchanged_since[index] >= timeout:
                    del waiting[index]
                    yield worker, _stalled(worker, timeout)
            progress = latest

    def _block(self, workers: list[WorkerProcess], timeout: float, commanded: bool) -> list[Any]:
        """Block until a worker has sent a report or ended, or `timeout` seconds have passed.

        If `commanded`, return also when a worker has acknowledged its command, and after BLOCK_SECONDS at the latest.

        Returns:
            The handles that are ready.
        """
        handles = [handle for worker in workers for handle in worker.handles]
        if not commanded:
            return wait(handles, timeout)
        with self._mailbox.blocking():
            if any(self._mailbox.is_acknowledged(worker.index) for worker in workers):
                return []
            return wait(handles, min(timeout, BLOCK_SECONDS))

    def close(self, grace: float = 2.0) -> None:
        """Ask every worker to stop, kill those that still run after `grace` seconds, and reap all."""
        for worker in self._workers:
            try:
                worker.commands.put(Stop())
            except OSError:
                log.info("worker %d has ended already", worker.index)
        deadline = time.monotonic() + grace
        for worker in self._workers:
            worker.end(deadline)
        self._workers = []


def _stalled(worker: WorkerProcess, timeout: float) -> WorkerError:
    return WorkerError(
        f"worker {worker.index} (pid {worker.process.pid}) has made no progress for {timeout:g} s; if its environment "
        "is that slow, raise --worker-timeout"
    )


def _next_report(worker: WorkerProcess) -> Ready | WakeUp | WorkerError:
    """Read the next report of a worker of which a handle is ready. Return a WorkerError if it failed or died.

    Raises:
        ConfigError: if the worker has found that the main script has no guard (see `UNGUARDED_MAIN`).
    """
    # A worker that raises sends its report before it ends. So look for a report first.
    if not worker.reports.has_message():
        worker.process.join()
        if worker.process.exitcode == UNGUARDED_MAIN:
            raise ConfigError(
                "the main script calls train() or resume() again when a worker imports it; put the call under "
                '`if __name__ == "__main__":`'
            )
        return WorkerError(f"worker {worker.index} died: {_exit_reason(worker.process.exitcode)}")
    try:
        report = worker.reports.get()
    except (EOFError, OSError):
        return WorkerError(f"worker {worker.index} died while it was writing a report")
    if isinstance(report, Failed):
        message = f"worker {worker.index} failed: {report.message}"
        return WorkerError(message, report.env_index, details=report.details)
    assert isinstance(report, (Ready, WakeUp)), report
    return report


def _exit_reason(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by signal {-exitcode}"
    return f"exit code {exitcode}"
