"""Close the fork server's pipe in a worker. This needs a private attribute of multiprocessing."""

from __future__ import annotations

import os
from multiprocessing import forkserver
from typing import Any


def close_fork_server_pipe() -> None:
    """Close the inherited end of the fork server's pipe in a worker.

    The fork server ends when every process has closed its end of this pipe, and the kernel then kills the workers. If
    workers kept their ends open, a stopped worker would keep the fork server running, and so would never be killed.
    """
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
