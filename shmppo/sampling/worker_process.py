"""A worker process as its starter holds it: its queues, its sentinel, its end; and what processes are forked from."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import torch.multiprocessing

from shmppo.errors import WorkerError
from shmppo.parallel.mailbox import Failed, Ready, Ring
from shmppo.sampling.worker import WorkerSetup, run_worker

# Imported once by the fork server, so that all workers share the pages. multiprocessing runs the main module again
# in each child: what `shmppo.train` imports is among them.
PRELOAD = [
    "shmppo.sampling.worker",
    "shmppo.ppo.learner",
    "shmppo.runs.checkpoint",
    "shmppo.loggers.metrics",
    "shmppo.runs.session",
]

START_TRIES, RETRY_SECONDS = 3, 0.2


class WorkerProcess:
    """One worker process with its channels."""

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        self.index = setup.index
        self._ended = False
        for tries_left in reversed(range(START_TRIES)):
            self.commands = context.SimpleQueue()
            self.reports = context.SimpleQueue()
            self.process = context.Process(
                target=run_worker,
                args=(setup, self.commands, self.reports),
                name=f"worker-{setup.index}",
                daemon=True,
            )
            try:
                self.process.start()
                break
            except (EOFError, ConnectionError):  # a signal to all of the group has ended the fork server: start another
                if not tries_left:
                    raise
                time.sleep(RETRY_SECONDS)
        self.channels = [self.reports._reader, self.process.sentinel]

    def speaks(self, ready: list[Any]) -> bool:
        """Whether its queue or its sentinel is among those that are ready."""
        return any(channel in ready for channel in self.channels)

    def ring(self) -> None:
        """Wake it up. One that cannot be reached is dead: its sentinel says so when it is waited for."""
        with contextlib.suppress(OSError):
            self.commands.put(Ring())

    def next_report(self) -> Ready | Ring | WorkerError:
        """What is in its queue, as that or its sentinel is ready; a WorkerError if it failed or died."""
        # A worker that failed reports first and ends afterwards: look at the report before the death.
        if not self.reports._reader.poll():
            self.process.join()
            return WorkerError(f"worker {self.index} died: {_how(self.process.exitcode)}")
        try:
            report = self.reports.get()
        except (EOFError, OSError):
            return WorkerError(f"worker {self.index} died in the middle of a report")
        if isinstance(report, Failed):
            where = "" if report.env_index is None else f" in environment {report.env_index}"
            return WorkerError(f"worker {self.index} failed{where}:\n{report.traceback}", report.env_index)
        assert isinstance(report, (Ready, Ring)), report
        return report

    def end(self, deadline: float) -> None:
        """End and reap the process: wait until `deadline`, then kill. Safe to call twice."""
        if self._ended:
            return
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self._ended = True
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
        # Clusters and terminals send them to every process of a job; who ignores them passes that on.
        with _ignored(signal.SIGUSR1), _ignored(signal.SIGINT):
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
