"""The fork server imports this module first, so that it removes its socket if the learner was killed.

The socket is the only file in a temporary directory of multiprocessing. The learner removes this directory when it
ends, but not if it is killed (SIGKILL). The fork server outlives the learner by a moment.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

WAIT_SECONDS = 2.0  # maximum time until the kernel reports that the learner has ended
POLL_SECONDS = 0.01


def remove_socket(own_pid: int, learner: int, server: Any) -> None:
    """Remove the socket and its directory, if this process is the fork server and the learner has ended.

    Args:
        own_pid: process id of the process that has imported this module. Its children inherit the registration.
        learner: process id of its parent.
        server: multiprocessing's object that describes the fork server.
    """
    if os.getpid() != own_pid or server._forkserver_pid is not None or not isinstance(server._forkserver_address, str):
        return  # this process is not a fork server
    deadline = time.monotonic() + WAIT_SECONDS
    while os.getppid() == learner:
        if time.monotonic() > deadline:  # the fork server has failed; the learner uses the directory again
            return
        time.sleep(POLL_SECONDS)
    socket = Path(server._forkserver_address)
    with contextlib.suppress(OSError):
        socket.unlink()
    if socket.parent.name.startswith("pymp-"):
        with contextlib.suppress(OSError):
            socket.parent.rmdir()


atexit.register(remove_socket, os.getpid(), os.getppid(), vars(forkserver)["_forkserver"])
