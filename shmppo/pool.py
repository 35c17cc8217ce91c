"""The workers seen from the learner: start, lock-step, liveness, end; and the twin without processes.

Each worker has its own pair of queues, waited on together with its sentinel: nothing is shared by two
workers, so one that is killed can block nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.multiprocessing

from shmppo.config import TrainConfig
from shmppo.envs import Task
from shmppo.episodes import ActionLog
from shmppo.layout import Arena
from shmppo.messages import Collect, Done, Failed, Gradients, Ready, Refresh, Report, Stop
from shmppo.model import ActorCritic
from shmppo.refresh import StateRefresh
from shmppo.rollout import Collector
from shmppo.timers import PhaseTimer
from shmppo.worker import WorkerSetup, run_worker

log = logging.getLogger("shmppo.pool")

# Imported once by the fork server, so that all workers share the pages. multiprocessing runs the main module again
# in each child: what `shmppo.train` imports is among them.
PRELOAD = ["shmppo.worker", "shmppo.learner", "shmppo.checkpoint", "shmppo.report", "shmppo.session"]
RESTART_WINDOW_SECONDS = 3600.0
START_SECONDS = 120.0  # making environments may compile or load models


class WorkerFault(RuntimeError):
    """A worker raised, died or stopped answering; the message holds its traceback where there is one."""

    def __init__(self, message: str, env_index: int | None = None) -> None:
        super().__init__(message)
        self.env_index = env_index


class Pool(Protocol):
    """Who samples the rollout."""

    handshake_seconds: float
    """Seconds spent on signalling alone since it was last set to 0 (see `WorkerPool`)."""
    collect_seconds: float
    """Seconds that the last rollout took, up to its slowest worker."""
    worker_seconds: np.ndarray
    """Seconds that each worker took for its part of the last rollout, [W] ([1] without workers)."""
    restarts: int
    """Workers replaced so far."""
    lost: list[int]
    """Environments whose episode could not be replayed, since it was last emptied."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""

    def wait_ready(self) -> None:
        """Return when every environment has begun its first episode. Raises WorkerFault."""

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> None:
        """Fill the rollout. Raises WorkerFault or EnvironmentFault."""

    def gradients(self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer) -> None:
        """Fill the gradient slab for one minibatch; the learner's part of it is `own`. Raises WorkerFault."""

    def refresh(self, version: int, timer: PhaseTimer) -> None:
        """Bring the stored states up to date. Raises WorkerFault."""

    def close(self, grace: float = 2.0) -> None:
        """End everything that was started, with force after `grace` seconds; safe to call twice and after a fault."""


class InProcess:
    """The pool of `--workers 0`: the same collector over all environments, inside the learner."""

    def __init__(self, config: TrainConfig, task: Task, model: ActorCritic, arena: Arena, actions: ActionLog) -> None:
        self.handshake_seconds = 0.0
        self.collect_seconds = 0.0
        self.worker_seconds = np.zeros(1)
        self.restarts = 0
        self.lost: list[int] = []
        high, progress = config.num_envs, arena.array("progress")[0]
        self._collector = Collector(config, task, model, arena, low=0, high=high, progress=progress)
        self._states = StateRefresh(config, task.distribution, model, arena, low=0, high=high, progress=progress)
        if actions.iteration:
            self.lost.extend(self._collector.restore(actions.iteration, actions.episodes(range(config.num_envs))))
            for n in self.lost:
                actions.forget(n)
        else:
            self._collector.start()

    @property
    def pids(self) -> list[int]:
        return []

    def wait_ready(self) -> None:
        pass

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> None:
        began = timer.switch("inference")
        self._collector.collect(iteration, timer)
        self.collect_seconds = timer.switch("other") - began
        self.worker_seconds[0] = self.collect_seconds

    def gradients(self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer) -> None:
        raise RuntimeError("there are no workers to compute gradients")

    def refresh(self, version: int, timer: PhaseTimer) -> None:
        timer.switch("inference")
        self._states.refresh()
        timer.switch("other")

    def close(self, grace: float = 2.0) -> None:
        self._collector.close()


class _Worker:
    """One worker process with its channels."""

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        self.index = setup.index
        self.commands = context.SimpleQueue()
        self.reports = context.SimpleQueue()
        self.process = context.Process(
            target=run_worker,
            args=(setup, self.commands, self.reports),
            name=f"worker-{setup.index}",
            daemon=True,
        )
        self.process.start()

    def next_report(self) -> Report | WorkerFault:
        """The report that is due, as its queue or its sentinel is ready; a WorkerFault if it failed or died."""
        # A worker that failed reports first and ends afterwards: look at the report before the death.
        if not self.reports._reader.poll():
            self.process.join()
            return WorkerFault(f"worker {self.index} died: {_how(self.process.exitcode)}")
        try:
            report = self.reports.get()
        except (EOFError, OSError):
            return WorkerFault(f"worker {self.index} died in the middle of a report")
        if isinstance(report, Failed):
            where = "" if report.env_index is None else f" in environment {report.env_index}"
            return WorkerFault(f"worker {self.index} failed{where}:\n{report.traceback}", report.env_index)
        assert isinstance(report, (Ready, Done)), report
        return report

    def end(self, deadline: float) -> None:
        """End and reap the process: wait until `deadline`, then kill."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        self.commands.close()
        self.reports.close()


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by signal {-exitcode}"
    return f"exit code {exitcode}"


def start_context() -> Any:
    """How a run's processes are started: by a fork server that has imported what they need, or spawned."""
    methods = torch.multiprocessing.get_all_start_methods()
    context: Any = torch.multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(PRELOAD)
        with _ignored(signal.SIGUSR1):  # clusters send it to every process of a job; who ignores it passes that on
            forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _ignored(number: int) -> Iterator[None]:
    """Ignore a signal; only the main thread can, others do not try."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def split(count: int, parts: int, index: int) -> range:
    """Part `index` of `count` things dealt out in contiguous ranges whose sizes differ by at most one."""
    return range(index * count // parts, (index + 1) * count // parts)


class WorkerPool:
    """W worker processes in lock-step.

    In LEARN the learner takes the first of the W parts and worker 0 stays parked: as many processes are busy as in
    COLLECT, so on W cores nobody waits for a core (CHANGELOG: what it costs otherwise).

    `handshake_seconds` is the cost of lock-step itself, on one monotonic clock: from the learner's first signal to a
    process's start, mean over the processes of the phase, plus from the last one's end to the learner going on.
    """

    def __init__(self, config: TrainConfig, task: Task, arena: Arena, actions: ActionLog, log_file: Path) -> None:
        self.handshake_seconds = 0.0
        self.collect_seconds = 0.0
        self.worker_seconds = np.zeros(config.num_workers)
        self.restarts = 0
        self.lost: list[int] = []
        self._config = config
        self._actions = actions
        self._seconds, self._stamps = arena.array("phase_seconds"), arena.array("stamps")
        self._progress = arena.array("progress")
        self._deaths: dict[int, list[float]] = {w: [] for w in range(config.num_workers)}
        self._context = start_context()
        self._setup = WorkerSetup(config, task, arena.fields, arena.memory, log_file)
        self._workers = [self._start(w, replay=actions.iteration > 0) for w in range(config.num_workers)]

    def _start(self, index: int, *, replay: bool) -> _Worker:
        """A new process for part `index`; with `replay`, it first rebuilds its environments."""
        config = self._config
        columns = split(config.num_envs, config.num_workers, index)
        setup = dataclasses.replace(
            self._setup,
            index=index,
            columns=columns,
            shards=split(config.shards, config.num_workers, index),
            iteration=self._actions.iteration,
            episodes=self._actions.episodes(columns) if replay else None,
        )
        return _Worker(self._context, setup)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def wait_ready(self) -> None:
        for worker, report in self._reports(self._workers, START_SECONDS):
            self._accept(worker, report)

    def _accept(self, worker: _Worker, report: Report | WorkerFault) -> None:
        """Take a new worker's first report. Raises WorkerFault if it is anything but Ready."""
        if isinstance(report, WorkerFault):
            raise report
        if not isinstance(report, Ready):
            raise WorkerFault(f"worker {worker.index} answered {report} before it was ready")
        for n in report.lost:
            self._actions.forget(n)
        self.lost.extend(report.lost)

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> None:
        """Signal, workers sample, wait."""
        signalled = timer.switch("wait")
        command = Collect(version, iteration)
        self._signal(self._workers, command)
        self._await(self._workers, command)
        now = timer.switch("other")
        timer.add_blocked(now - signalled, self._seconds)
        self.collect_seconds = now - signalled
        self.worker_seconds = self._seconds.sum(axis=1)
        starts, ends = self._stamps.T
        self.handshake_seconds += float((starts - signalled).mean() + (now - ends.max()))

    def refresh(self, version: int, timer: PhaseTimer) -> None:
        """Signal, workers refresh, wait."""
        signalled = timer.switch("wait")
        command = Refresh(version)
        self._signal(self._workers, command)
        self._await(self._workers, command)
        timer.add_blocked(timer.switch("other") - signalled, self._seconds)

    def gradients(self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer) -> None:
        """Signal, workers and learner compute, wait."""
        others = self._workers[1:]
        signalled = timer.switch("wait")
        command = Gradients(version, epoch, minibatch)
        self._signal(others, command)
        own_start = timer.switch("gradient")
        own()
        own_end = timer.switch("wait")
        self._await(others, command)
        now = timer.switch("other")
        starts, ends = self._stamps[1:].T
        waited = (own_start - signalled) + float((starts - signalled).sum())
        self.handshake_seconds += waited / len(self._workers) + now - float(ends.max(initial=own_end))

    def _signal(self, workers: list[_Worker], command: Collect | Gradients | Refresh) -> None:
        for worker in workers:
            # One that cannot be reached is dead: its sentinel says so when its report is waited for.
            with contextlib.suppress(OSError):
                worker.commands.put(command)

    def _await(self, workers: list[_Worker], command: Collect | Gradients | Refresh) -> None:
        """Return when every worker has carried the command out; those that fail are replaced and told again."""
        while workers:  # those still to be heard from
            replaced = []
            for worker, report in self._reports(workers, self._config.worker_timeout):
                if isinstance(report, WorkerFault):
                    replaced.append(self._replace(worker, report))
                elif report != Done(command.version):
                    raise WorkerFault(f"worker {worker.index} answered {report} to {command}")
            self._signal(replaced, command)
            workers = replaced

    def _replace(self, worker: _Worker, fault: WorkerFault) -> _Worker:
        """End a worker that failed and start another in its place.

        What the old one wrote since the last commit is written again from the committed carry; it is reaped before,
        so that a process that was only stopped cannot wake up and write too.

        Raises:
            WorkerFault: `fault`, if this worker has been replaced too often.
        """
        while True:
            worker.end(deadline=0.0)
            now = time.monotonic()
            deaths = [t for t in self._deaths[worker.index] if t > now - RESTART_WINDOW_SECONDS]
            self._deaths[worker.index] = [*deaths, now]
            if len(deaths) >= self._config.max_restarts:
                self._workers = [w for w in self._workers if w is not worker]
                raise fault
            log.warning("%s; starting another (%d of %d)", fault, len(deaths) + 1, self._config.max_restarts)
            self.restarts += 1
            new = self._start(worker.index, replay=True)
            self._workers[self._workers.index(worker)] = worker = new
            try:
                for one, report in self._reports([new], START_SECONDS):
                    self._accept(one, report)
            except WorkerFault as again:
                fault = again
            else:
                return new

    def _reports(self, workers: list[_Worker], timeout: float) -> Iterator[tuple[_Worker, Report | WorkerFault]]:
        """What becomes of each of `workers`, as it becomes known: its report, or the fault that ended it.

        One that takes no step for `timeout` seconds has a fault.
        """
        waiting = {worker.index: worker for worker in workers}
        silent_since, progress = time.monotonic(), self._progress.copy()
        while waiting:
            watched = [worker.reports._reader for worker in waiting.values()]
            watched += [worker.process.sentinel for worker in waiting.values()]
            ready = wait(watched, timeout / 4)
            for index, worker in list(waiting.items()):
                if worker.reports._reader in ready or worker.process.sentinel in ready:
                    del waiting[index]
                    yield worker, worker.next_report()
            if ready or any((self._progress[index] != progress[index]).any() for index in waiting):
                silent_since, progress = time.monotonic(), self._progress.copy()
            elif time.monotonic() - silent_since >= timeout:
                for index, worker in list(waiting.items()):
                    del waiting[index]
                    yield (
                        worker,
                        WorkerFault(
                            f"worker {index} (pid {worker.process.pid}) has not taken a step for {timeout:g} s; if its "
                            "environment is that slow, raise --worker-timeout"
                        ),
                    )

    def close(self, grace: float = 2.0) -> None:
        """Ask every worker to stop, kill those that have not after `grace` seconds, and reap them all."""
        for worker in self._workers:
            try:
                worker.commands.put(Stop())
            except OSError:
                log.info("worker %d is gone already", worker.index)
        deadline = time.monotonic() + grace
        for worker in self._workers:
            worker.end(deadline)
        self._workers = []
