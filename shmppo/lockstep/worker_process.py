"""The learner's handle of a worker process, and the multiprocessing context that starts processes."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

import torch.multiprocessing

from shmppo.config.checks import require
from shmppo.lockstep.fork_server import kill_with_children, start_fork_server
from shmppo.lockstep.mailbox import PipeQueue
from shmppo.lockstep.worker import STACK_SIGNAL, WorkerSetup, run_worker
from shmppo.utils.user_code import main_is_importable

WORKER_NAME = "worker-"
"""Beginning of the name of a worker process."""
UNGUARDED_MAIN = 77
"""Exit code of a process that runs the main script instead of importing it, because the script has no guard
`if __name__ == "__main__":`."""


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

    def write_stack(self) -> None:
        """Let a process without progress write its stack to the log file, unless it is starting or suspended."""
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.process.pid, STACK_SIGNAL)
            time.sleep(0.1)

    def end(self, deadline: float) -> None:
        """Wait for the process until `deadline` (monotonic seconds), then kill it, and reap it. Safe to call twice."""
        if self._ended:
            return
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            kill_with_children(self.process.pid)
            self.process.join()
        self._ended = True
        self.process.close()
        self.commands.close()
        self.reports.close()


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
