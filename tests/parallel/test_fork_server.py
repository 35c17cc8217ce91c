"""The fork server: its pipe, which would keep it alive if a stopped worker held it, and signals to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

from shmppo.lockstep.fork_server import end_with_fork_server
from shmppo.lockstep.mailbox import PipeQueue
from shmppo.lockstep.worker_processes import start_context
from shmppo.utils.signals import STOP_SIGNALS


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def server_pid() -> int:
    return vars(forkserver)["_forkserver"]._forkserver_pid


def close_and_report(reports: PipeQueue) -> None:
    server: Any = vars(forkserver)["_forkserver"]
    descriptor = server._forkserver_alive_fd
    before = is_open(descriptor)
    end_with_fork_server()
    after = is_open(descriptor)
    end_with_fork_server()  # twice is safe
    reports.put((before, after, server._forkserver_alive_fd))


def fork_and_report(reports: PipeQueue) -> None:
    def handler(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    kept = blocked and signal.getsignal(signal.SIGTERM) is handler
    if pid == 0:
        os._exit(int(kept))
    reports.put((kept, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def report_of(target: Callable[[PipeQueue], None]) -> Any:
    """What a function reports in a process that the fork server starts."""
    context = start_context()
    reports = PipeQueue(context)
    process = context.Process(target=target, args=(reports,), daemon=True)
    process.start()
    report = reports.get()
    process.join(10)
    assert process.exitcode == 0
    reports.close()
    return report


def test_processes_that_a_worker_forks_keep_its_handler_and_mask_of_sigterm() -> None:
    assert report_of(fork_and_report) == (True, 1)


def test_a_worker_lets_go_of_the_pipe() -> None:
    """That the fork server then ends is tested with a stopped worker whose learner is killed."""
    assert report_of(close_and_report) == (True, False, None)


def test_signals_to_all_processes_of_a_job_do_not_end_the_fork_server() -> None:
    context = start_context()
    pid = server_pid()
    for number in STOP_SIGNALS:
        os.kill(pid, number)
    assert report_of(close_and_report)
    for _ in range(10):  # at once, so that some get the signal before they have restored its disposition
        sleeper = context.Process(target=time.sleep, args=(100,), daemon=True)
        sleeper.start()
        sleeper.terminate()
        sleeper.join(50)
        assert sleeper.exitcode == -signal.SIGTERM
    assert server_pid() == pid
