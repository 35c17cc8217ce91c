"""The workers seen from the learner: start, lock-step, liveness, end; and the twin without processes.

Each worker has its own row of orders and its own pair of queues, waited on together with its sentinel: nothing is
shared by two workers, so one that is killed can block nobody.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import WorkerError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.mailbox import NAP_SECONDS, Collect, Gradients, LearnerMailbox, Order, Ready, Refresh, Ring, Stop
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.parallel.spin_wait import spin_wait
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.collector import Collector
from shmppo.sampling.state_refresh import StateRefresh
from shmppo.sampling.worker import WorkerSetup
from shmppo.sampling.worker_process import WorkerProcess, start_context
from shmppo.utils.machine import usable_cores
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import torch_threads

log = logging.getLogger(__name__)

RESTART_WINDOW_SECONDS = 3600.0
START_SECONDS = 120.0  # the least --worker-timeout of a worker's start: environments may compile or load models


class Pool(Protocol):
    """Who samples the rollout."""

    sync_seconds: float
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
        """Return when every environment has begun its first episode. Raises WorkerError."""

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> None:
        """Fill the rollout. Raises WorkerError or EnvError."""

    def gradients(self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer) -> None:
        """Fill the gradient slab for one minibatch; the learner's part of it is `own`. Raises WorkerError."""

    def refresh(self, version: int, timer: PhaseTimer) -> None:
        """Bring the stored states up to date. Raises WorkerError."""

    def close(self, grace: float = 2.0) -> None:
        """End everything that was started, with force after `grace` seconds; safe to call twice and after a fault."""


class InProcessPool:
    """The pool of `--workers 0`: the same collector over all environments, inside the learner, at one thread too."""

    def __init__(
        self, config: TrainConfig, task: Task, model: ActorCritic, arena: SharedBuffers, actions: ActionLog
    ) -> None:
        self.sync_seconds = 0.0
        self.collect_seconds = 0.0
        self.worker_seconds = np.zeros(1)
        self.restarts = 0
        self.lost: list[int] = []
        high, progress = config.num_envs, arena.array("progress")[0]
        with torch_threads(1):
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
        with torch_threads(1):
            self._collector.collect(iteration, timer)
        self.collect_seconds = timer.switch("other") - began
        self.worker_seconds[0] = self.collect_seconds

    def gradients(self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer) -> None:
        raise RuntimeError("there are no workers to compute gradients")

    def refresh(self, version: int, timer: PhaseTimer) -> None:
        timer.switch("inference")
        with torch_threads(1):
            self._states.refresh()
        timer.switch("other")

    def close(self, grace: float = 2.0) -> None:
        self._collector.close()


def split(count: int, parts: int, index: int) -> range:
    """Part `index` of `count` things dealt out in contiguous ranges whose sizes differ by at most one."""
    return range(index * count // parts, (index + 1) * count // parts)


class WorkerPool:
    """W worker processes in lock-step.

    In LEARN the learner takes the first of the W parts and worker 0 stays parked: as many processes are busy as in
    COLLECT, so on W cores nobody waits for a core (CHANGELOG: what it costs otherwise).

    `sync_seconds` is the cost of lock-step itself, on one monotonic clock: from the learner's first signal to a
    process's start, mean over the processes of the phase, plus from the last one's end to the learner going on.
    """

    def __init__(
        self, config: TrainConfig, task: Task, arena: SharedBuffers, actions: ActionLog, log_file: Path
    ) -> None:
        self.sync_seconds = 0.0
        self.collect_seconds = 0.0
        self.worker_seconds = np.zeros(config.num_workers)
        self.restarts = 0
        self.lost: list[int] = []
        self._config = config
        self._actions = actions
        self._seconds, self._stamps = arena.array("phase_seconds"), arena.array("stamps")
        self._progress = arena.array("progress")
        self._desk = LearnerMailbox(arena)
        self._deaths: dict[int, list[float]] = {w: [] for w in range(config.num_workers)}
        self._context = start_context()
        spins = config.num_workers <= usable_cores()
        self._start_seconds = max(START_SECONDS, config.worker_timeout)
        self._setup = WorkerSetup(config, task, arena.fields, arena.memory, log_file, spins)
        self._workers: list[WorkerProcess] = []
        try:
            for w in range(config.num_workers):
                self._workers.append(self._start(w, replay=actions.iteration > 0))
        except BaseException:  # such as no more processes, or Ctrl-C: those that run belong to nobody else
            self.close(grace=0.0)
            raise

    def _start(self, index: int, *, replay: bool) -> WorkerProcess:
        """A new process for part `index`; with `replay`, it first rebuilds its environments."""
        config = self._config
        columns = split(config.num_envs, config.num_workers, index)
        setup = dataclasses.replace(
            self._setup,
            index=index,
            columns=columns,
            shards=split(config.shards, config.num_workers, index),
            turn=self._desk.turn(index),
            iteration=self._actions.iteration,
            episodes=self._actions.episodes(columns) if replay else None,
        )
        return WorkerProcess(self._context, setup)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def wait_ready(self) -> None:
        for _, report in self._reports(self._workers, self._start_seconds):
            self._accept(report)

    def _accept(self, report: Ready | WorkerError | None) -> None:
        """Take a new worker's first report. Raises WorkerError if it has failed."""
        if isinstance(report, WorkerError):
            raise report
        assert report is not None, "nothing was ordered"
        for n in report.lost:
            self._actions.forget(n)
        self.lost.extend(report.lost)

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> None:
        """Signal, workers sample, wait."""
        signalled = timer.switch("wait")
        order = Collect(version, iteration)
        self._signal(self._workers, order)
        self._await(self._workers, order)
        now = timer.switch("other")
        timer.add_blocked(now - signalled, self._seconds)
        self.collect_seconds = now - signalled
        self.worker_seconds = self._seconds.sum(axis=1)
        starts, ends = self._stamps.T
        self.sync_seconds += float((starts - signalled).mean() + (now - ends.max()))

    def refresh(self, version: int, timer: PhaseTimer) -> None:
        """Signal, workers refresh, wait."""
        signalled = timer.switch("wait")
        order = Refresh(version)
        self._signal(self._workers, order)
        self._await(self._workers, order)
        timer.add_blocked(timer.switch("other") - signalled, self._seconds)

    def gradients(self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer) -> None:
        """Signal, workers and learner compute, wait."""
        others = self._workers[1:]
        signalled = timer.switch("wait")
        order = Gradients(version, epoch, minibatch)
        self._signal(others, order)
        own_start = timer.switch("gradient")
        own()
        own_end = timer.switch("wait")
        if not (self._setup.spins and spin_wait(self._desk.settled)):
            self._await(others, order)
        now = timer.switch("other")
        starts, ends = self._stamps[1:].T
        waited = (own_start - signalled) + float((starts - signalled).sum())
        self.sync_seconds += waited / len(self._workers) + now - float(ends.max(initial=own_end))

    def _signal(self, workers: list[WorkerProcess], order: Order) -> None:
        for worker in workers:
            self._desk.give(worker.index, order, worker.ring)

    def _await(self, workers: list[WorkerProcess], order: Order) -> None:
        """Return when every worker has carried the order out; those that fail are replaced and told again."""
        while workers:  # those still to be heard from
            replaced = []
            for worker, fault in self._reports(workers, self._config.worker_timeout, ordered=True):
                if isinstance(fault, WorkerError):
                    replaced.append(self._replace(worker, fault))
            self._signal(replaced, order)
            workers = replaced

    def _replace(self, worker: WorkerProcess, fault: WorkerError) -> WorkerProcess:
        """End a worker that failed and start another in its place.

        What the old one wrote since the last commit is written again from the committed carry; it is reaped before,
        so that a process that was only stopped cannot wake up and write too.

        Raises:
            WorkerError: `fault`, if this worker has been replaced too often.
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
                for _, report in self._reports([new], self._start_seconds):
                    self._accept(report)
            except WorkerError as again:
                fault = again
            else:
                return new

    def _reports(
        self, workers: list[WorkerProcess], timeout: float, *, ordered: bool = False
    ) -> Iterator[tuple[WorkerProcess, Ready | WorkerError | None]]:
        """What becomes of each of `workers`, as it becomes known: its report, or the fault that ended it.

        One that takes no step for `timeout` seconds has a fault.

        Args:
            ordered: they have been given an order, and None is the report of one that has carried it out.
        """
        waiting = {worker.index: worker for worker in workers}
        silent_since, progress = time.monotonic(), self._progress.copy()
        while waiting:
            ready, heard = self._wait(list(waiting.values()), timeout / 4, ordered), False
            for index, worker in list(waiting.items()):
                report: Ready | WorkerError | None = None
                if not (ordered and self._desk.answered(index)):
                    if not worker.speaks(ready):
                        continue
                    said = worker.next_report()
                    if isinstance(said, Ring):  # it has answered; looked at before the next sleep
                        continue
                    report = said
                del waiting[index]
                heard = True
                yield worker, report
            if heard or any((self._progress[index] != progress[index]).any() for index in waiting):
                silent_since, progress = time.monotonic(), self._progress.copy()
            elif time.monotonic() - silent_since >= timeout:
                for index, worker in list(waiting.items()):
                    del waiting[index]
                    yield (
                        worker,
                        WorkerError(
                            f"worker {index} (pid {worker.process.pid}) has not taken a step for {timeout:g} s; if its "
                            "environment is that slow, raise --worker-timeout"
                        ),
                    )

    def _wait(self, workers: list[WorkerProcess], timeout: float, ordered: bool) -> list[Any]:
        """Sleep until one of the workers may have something to say; the queues and sentinels that have."""
        channels = [channel for worker in workers for channel in worker.channels]
        if not ordered:
            return wait(channels, timeout)
        with self._desk.asleep():
            if any(self._desk.answered(worker.index) for worker in workers):
                return []
            return wait(channels, min(timeout, NAP_SECONDS))

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
