"""The pool of worker processes: it starts them, sends commands, detects failures, and replaces failed workers.

Each worker has its own row of commands, its own pair of queues, and its own sentinel. Workers share no lock, so a
killed worker blocks no other.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import ConfigError, ShmppoError, WorkerError
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.commands import (
    Collect,
    Command,
    ComputeGradients,
    Evaluate,
    ReduceGradients,
    RefreshStates,
    StepOptimizer,
)
from shmppo.lockstep.mailbox import BLOCK_SECONDS, Failed, LearnerMailbox, Ready, Stop, WakeUp
from shmppo.lockstep.pool import Times
from shmppo.lockstep.share import Part, Share
from shmppo.lockstep.stall_detector import StallDetector
from shmppo.lockstep.worker import WorkerSetup
from shmppo.lockstep.worker_process import UNGUARDED_MAIN, WorkerProcess, start_context
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.parallel.spin import SpinWait
from shmppo.utils.machine import usable_cores
from shmppo.utils.partition import partition
from shmppo.utils.phase_timer import PhaseTimer

log = logging.getLogger(__name__)

MAX_RESTARTS = 3  # replacements of a worker within the window; one more failure ends the run
RESTART_WINDOW_SECONDS = 3600.0
MIN_DIVIDED_SUM, MIN_DIVIDED_STEP = 2**20, 2**18
"""Workers help to add the gradients of all shards from this many numbers on, and to step the optimizer from this many
parameters on. With fewer, signaling costs more."""
MIN_START_SECONDS = 120.0
"""Minimum timeout of a worker's start, because environments may compile code or load models."""


class WorkerPool:
    """A pool with W worker processes in lock-step. For the public methods, see `Pool`.

    Workers collect rollouts and play evaluations. In an update, the learner's share is the first of the W parts, and
    worker 0 stays idle. So W processes are busy in each phase, and with W cores no process waits for a core. In central
    learning, the learner's share contains all shards and parameters.

    Signaling seconds are the time that lock-step itself costs. They are the sum of two delays on the monotonic clock:
    - from the learner's command to the start of its execution, as a mean over the processes of the phase;
    - from the end of the last process to the moment at which the learner continues.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        buffers: SharedBuffers,
        actions: ActionLog,
        mark_lost: Callable[[int], None],
        log_file: Path,
    ) -> None:
        """Start all workers. They create their environments and restore episodes while the learner continues.

        Args:
            actions: the episodes to restore at the start if its iteration is above 0, and when a worker is replaced.
            mark_lost: called with the index of each environment that could not be restored and begins its next episode.
            log_file: file to which the workers append their log records.

        Raises:
            OSError: if the system cannot start as many processes.
        """
        self.timer = PhaseTimer()
        self.restarts = 0
        self._config, self._task, self._buffers = config, task, buffers
        self._actions, self._mark_lost = actions, mark_lost
        self._collect_seconds = self._signaling_seconds = 0.0
        self._worker_seconds = np.zeros(config.num_workers)
        self._divided: set[type[Command]] = set()
        if config.sharded:
            self._divided.add(ComputeGradients)
            if buffers.shard_results.gradients.size >= MIN_DIVIDED_SUM:
                self._divided.add(ReduceGradients)
            if buffers.published.weights.size >= MIN_DIVIDED_STEP:
                self._divided.add(StepOptimizer)
        self._mailbox = LearnerMailbox(buffers.control)
        self._spin_wait = SpinWait()
        self._deaths: dict[int, list[float]] = {w: [] for w in range(config.num_workers)}
        self._begun: set[int] = set()  # workers whose environments have begun or have been restored
        self._context = start_context()
        spins = config.num_workers <= usable_cores()
        self._start_seconds = max(MIN_START_SECONDS, config.worker_timeout)
        self._setup = WorkerSetup(config, task, buffers.fields, buffers.memory, log_file, spins)
        self._workers: list[WorkerProcess] = []
        try:
            for w in range(config.num_workers):
                self._workers.append(self._start(w))
        except BaseException:  # the process limit is reached, or Ctrl-C: end the workers that run already
            self.close(grace=0.0)
            raise

    def _must_restore(self, index: int) -> bool:
        """Whether a new worker has to restore the episodes of its environments instead of beginning the first ones."""
        return self._actions.iteration > 0 or index in self._begun

    def _start(self, index: int) -> WorkerProcess:
        """Start worker `index`. It begins the first episodes of its environments, or restores those in progress."""
        episodes = self._actions.episodes(self._config.columns(index)) if self._must_restore(index) else None
        setup = dataclasses.replace(self._setup, index=index, iteration=self._actions.iteration, episodes=episodes)
        worker = WorkerProcess(self._context, setup)
        self._mailbox.connect(index, worker.commands)
        return worker

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def start(self, model: ActorCritic) -> None:
        config, none = self._config, range(0)
        parts = config.num_workers if config.sharded else 1
        sums, steps = ((0, parts if command in self._divided else 1) for command in (ReduceGradients, StepOptimizer))
        part = Part(none, none, partition(config.shards, parts, 0), sums, steps, row=None)
        self._share = Share(config, self._task, model, self._buffers, part, self.timer)
        self._wait_ready(self._workers)

    def _wait_ready(self, workers: list[WorkerProcess]) -> None:
        """Wait until workers have started. Replace those that fail while they start or restore their environments."""
        while workers:
            replaced = []
            for worker, report in self._reports(workers, self._start_seconds):
                if isinstance(report, Ready):
                    for n in report.lost:
                        self._mark_lost(n)
                    self._begun.add(worker.index)
                    continue
                error = report.error(worker.index) if isinstance(report, Failed) else report
                assert error is not None, "the worker has no command yet"
                begins = not (self._must_restore(worker.index) or self._config.skip_bad_episodes)
                if isinstance(report, Failed) and begins:
                    raise error  # another worker would begin the same episodes
                replaced.append(self._replace(worker, error))
            workers = replaced

    def execute(self, command: Command) -> None:
        if isinstance(command, Evaluate):  # the phase of the caller goes on
            self._send_and_wait(command)
        elif isinstance(command, (Collect, RefreshStates)):
            self._let_workers(command)
        elif type(command) in self._divided:
            self._divide(command)
        else:
            self._share.execute(command)

    def take_times(self) -> Times:
        signaling, self._signaling_seconds = self._signaling_seconds, 0.0
        return Times(self.timer.reset(), self._collect_seconds, self._worker_seconds, signaling)

    def _let_workers(self, command: Command) -> None:
        """Let all workers do their parts, while the learner waits."""
        timings, timer = self._buffers.timings, self.timer
        sent = timer.switch("wait")
        self._send_and_wait(command)
        now = timer.switch("other")
        timer.add_blocked(now - sent, timings.phase_seconds)
        if isinstance(command, Collect):
            starts, ends = timings.command_interval.T
            self._collect_seconds, self._worker_seconds = now - sent, timings.phase_seconds.sum(axis=1)
            self._signaling_seconds += float((starts - sent).mean() + (now - ends.max()))

    def _divide(self, command: Command) -> None:
        """Do the learner's part while all workers but worker 0 do theirs."""
        others, timer = self._workers[1:], self.timer
        sent = timer.switch("wait")
        self._send(others, command)
        own_start, own_end = self._share.execute(command)
        timer.switch("wait")
        if not (self._setup.spins and self._spin_wait(self._mailbox.all_acknowledged)):
            self._wait(others, command)
        now = timer.switch("other")
        starts, ends = self._buffers.timings.command_interval[1:].T
        delays = (own_start - sent) + float((starts - sent).sum())
        self._signaling_seconds += delays / len(self._workers) + now - float(ends.max(initial=own_end))

    def _send(self, workers: list[WorkerProcess], command: Command) -> None:
        for worker in workers:
            self._mailbox.send(worker.index, command)

    def _send_and_wait(self, command: Command) -> None:
        self._send(self._workers, command)
        self._wait(self._workers, command)

    def _wait(self, workers: list[WorkerProcess], command: Command) -> None:
        """Wait until every worker has acknowledged the command. Replace workers that die or stall, and send it again.

        Raises:
            ShmppoError: if a worker raises. It would raise again.
            WorkerError: if a worker has been replaced too often, or dies or stalls in an optimizer step, which cannot
                be repeated.
        """
        # An evaluation may make environments, as a start does.
        seconds = self._start_seconds if isinstance(command, Evaluate) else self._config.worker_timeout
        while workers:
            replaced = []
            for worker, report in self._reports(workers, seconds, commanded=True):
                if isinstance(report, Failed):
                    raise report.error(worker.index)
                if isinstance(report, WorkerError):
                    if isinstance(command, StepOptimizer):
                        raise report
                    replaced.append(worker.index)
                    self._replace(worker, report)
            self._wait_ready([self._workers[w] for w in replaced])
            workers = [self._workers[w] for w in replaced]
            self._send(workers, command)

    def _replace(self, worker: WorkerProcess, error: ShmppoError) -> WorkerProcess:
        """End a failed worker and start another one in its place.

        The new worker overwrites what the old one has written in this phase. The old process is killed and reaped
        first. Otherwise a process that was only stopped could continue and write as well.

        Args:
            worker: the failed worker.
            error: its failure.

        Returns:
            The new worker. It is not ready yet.

        Raises:
            ShmppoError: `error`, if this worker has been replaced too often.
        """
        worker.end(deadline=0.0)
        now = time.monotonic()
        deaths = [t for t in self._deaths[worker.index] if t > now - RESTART_WINDOW_SECONDS]
        self._deaths[worker.index] = [*deaths, now]
        if len(deaths) >= MAX_RESTARTS:
            self._workers = [w for w in self._workers if w is not worker]
            raise error
        log.warning("%s; starting another worker (%d of %d)", error, len(deaths) + 1, MAX_RESTARTS)
        self.restarts += 1
        new = self._start(worker.index)
        self._workers = [new if w is worker else w for w in self._workers]
        return new

    def _reports(
        self, workers: list[WorkerProcess], timeout: float, *, commanded: bool = False
    ) -> Iterator[tuple[WorkerProcess, Ready | Failed | WorkerError | None]]:
        """Wait for one report of each worker, and yield them in the order of their arrival.

        Args:
            workers: the workers to wait for.
            timeout: seconds after which a worker without progress is stalled (see `StallDetector`).
            commanded: whether the workers have a command. Otherwise they start.

        Yields:
            (worker, report). The report is None if the worker has acknowledged its command, Failed if it has raised,
            and a WorkerError if it has died or stalled.
        """
        waiting = {worker.index: worker for worker in workers}
        interval = timeout / 4
        detector = StallDetector(self._buffers.control.progress, timeout, interval)
        while waiting:
            ready, reported = self._block(list(waiting.values()), interval, commanded), False
            for index, worker in list(waiting.items()):
                report: Ready | WakeUp | Failed | WorkerError | None
                if commanded and self._mailbox.is_acknowledged(index):
                    report = None
                elif any(handle in ready for handle in worker.handles):
                    report = _next_report(worker, starting=not commanded)
                else:
                    continue
                if isinstance(report, WakeUp):  # the next round of the loop checks for the acknowledgement
                    continue
                del waiting[index]
                reported = True
                yield worker, report
            if reported:  # the caller may have taken long, so look for the reports of the others first
                continue
            for worker, error in detector.stalled(list(waiting.values())):
                del waiting[worker.index]
                worker.write_stack()
                yield worker, error

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
