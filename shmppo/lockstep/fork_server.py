"""The fork server, from which all workers are forked. Parts of this need private attributes of multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from shmppo.utils.portable import numpy_inherited
from shmppo.utils.signals import STOP_SIGNALS, handled, kill_with_parent

PRELOAD = ["shmppo.lockstep.forked_children", "shmppo.lockstep.worker", "shmppo.runs.launch"]
"""Modules that the fork server imports once. All workers then share the memory pages of these modules.

`forked_children` is in the list because it changes the fork server, and `shmppo.runs.launch` because each worker
imports the main module again, which usually imports it."""

STACK_SIGNAL = signal.SIGUSR2
"""A worker that gets this signal writes its stack to the log file, even if an environment never returns."""
HANG_SIGNAL = signal.SIGVTALRM
"""A worker that gets this signal in a call of an environment raises a TimeoutError there."""


def start_fork_server() -> None:
    """Start the fork server, which imports PRELOAD while this process continues. Safe to call again.

    Terminals and cluster schedulers send signals to every process of a job. The fork server inherits the dispositions
    of this process, so it ignores STOP_SIGNALS. Its children restore that of SIGTERM, and handle the two signals of the
    learner after they have imported the main module.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with handled((*STOP_SIGNALS, STACK_SIGNAL, HANG_SIGNAL), signal.SIG_IGN), numpy_inherited(), ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        # It looks for modules in its directory first. In a copy of the repository, it would find other code.
        os.chdir(Path(__file__).parents[2] if os.path.isdir("shmppo") else ".")
        forkserver.ensure_running()


def _forget_fork_server() -> None:
    """Let a process that this one has forked start a fork server of its own."""
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server.__init__()


os.register_at_fork(after_in_child=_forget_fork_server)


def kill_fork_server() -> None:
    """End the fork server at once, even while it imports modules. Call this when no worker is left."""
    server: Any = vars(forkserver)["_forkserver"]
    pid = server._forkserver_pid
    if pid is not None:
        # The import of glfw, which mujoco needs, starts processes. Without a reader, they would print an error.
        kill_with_children(pid)
        server._stop()


def kill_with_children(pid: int) -> None:
    """Kill a process, and those that its main thread has started, such as the simulators of environments."""
    kill([pid, *children_of(pid)])


def kill_group(pid: int) -> None:
    """Kill the processes of the group that a worker leads, which are left when it has died, such as simulators."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started. Empty except on Linux."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pids: Iterable[int]) -> None:
    """Kill processes with SIGKILL, unless they have ended already."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_with_fork_server() -> None:
    """On Linux, let the kernel kill this process when its parent, the fork server, ends.

    A running process detects the end of the learner itself, but a stopped one (SIGSTOP) cannot. The fork server ends
    when every process has closed its end of a pipe. If its children kept their inherited ends open, a stopped one would
    keep the fork server running, and so would never be killed.
    """
    kill_with_parent()
    server: Any = vars(forkserver)["_forkserver"]
    if sys.platform == "linux" and server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
