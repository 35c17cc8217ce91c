"""The one private attribute of multiprocessing that workers need."""

from __future__ import annotations

import os
from multiprocessing import forkserver
from typing import Any


def close_fork_server_pipe() -> None:
    """Let go of the fork server's pipe in a worker.

    The fork server ends when every process has closed this pipe, and each worker inherits an end of it. So a stopped
    worker would keep the fork server alive, whose end is what kills the worker.
    """
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
