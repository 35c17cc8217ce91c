"""A worker process as the learner sees it: queues, sentinel, end. Also, how processes are started."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import torch.multiprocessing

from shmppo.parallel.mailbox import PipeQueue
from shmppo.sampling.worker import WorkerSetup, run_worker

PRELOAD = ["shmppo.sampling.worker", "shmppo.runs.trainer"]
"""The fork server imports these modules once, so that all workers share their memory pages. A worker imports the main
module again, and with it what `shmppo.train` imports."""

START_TRIES, RETRY_SECONDS = 3, 0.2


class WorkerProcess:
    """One worker process with its two queues."""

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        """Start the process. context: from `start_context`."""
        self.index = setup.index
        self._ended = False
        for tries_left in reversed(range(START_TRIES)):
            self.commands, self.reports = PipeQueue(context), PipeQueue(context)
            self.process = context.Process(
                target=run_worker,
                args=(setup, self.commands, self.reports),
                name=f"worker-{setup.index}",
                daemon=True,
            )
            try:
                self.process.start()
                break
            except (EOFError, ConnectionError):
                # A signal to the whole process group has ended the fork server. The next try starts another one.
                if not tries_left:
                    raise
                time.sleep(RETRY_SECONDS)
        self.handles = [self.reports.reader, self.process.sentinel]
        """What to wait for: a report, or the end of the process."""

    def end(self, deadline: float) -> None:
        """Wait for the process until `deadline` (monotonic seconds), then kill it, and reap it. Safe to call twice."""
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


def start_context() -> Any:
    """The multiprocessing context of a run: a fork server that has imported what workers need, else spawn."""
    methods = torch.multiprocessing.get_all_start_methods()
    context: Any = torch.multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(PRELOAD)
        # Terminals and clusters send these signals to every process of a job. The fork server inherits that they are
        # ignored.
        with _ignored(signal.SIGUSR1), _ignored(signal.SIGINT):
            forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _ignored(number: int) -> Iterator[None]:
    """Ignore a signal. Only the main thread can do this; in other threads nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
