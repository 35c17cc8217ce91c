"""A queue with one writer and one reader, and the one private attribute of multiprocessing that workers need."""

from __future__ import annotations

import os
from multiprocessing import forkserver
from typing import Any


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


def close_fork_server_pipe() -> None:
    """Let go of the fork server's pipe in a worker.

    The fork server ends when every process has closed this pipe, and each worker inherits an end of it. So a stopped
    worker would keep the fork server alive, whose end is what kills the worker.
    """
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
