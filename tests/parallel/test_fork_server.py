"""The fork server: its pipe, which would keep it alive if a stopped worker held it, and a start while it ends."""

from __future__ import annotations

import os
from multiprocessing import forkserver
from typing import Any

import pytest

from shmppo.parallel.fork_server import end_with_fork_server, started_process
from shmppo.parallel.mailbox import PipeQueue
from shmppo.sampling.worker_process import start_context


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def close_and_report(reports: PipeQueue) -> None:
    server: Any = vars(forkserver)["_forkserver"]
    descriptor = server._forkserver_alive_fd
    before = is_open(descriptor)
    end_with_fork_server()
    after = is_open(descriptor)
    end_with_fork_server()  # twice is safe
    reports.put((before, after, server._forkserver_alive_fd))


def test_a_worker_lets_go_of_the_pipe() -> None:
    """That the fork server then ends is tested with a stopped worker whose learner is killed."""
    context = start_context()
    reports = PipeQueue(context)
    process = context.Process(target=close_and_report, args=(reports,), daemon=True)
    process.start()
    assert reports.get() == (True, False, None)
    process.join(10)
    assert process.exitcode == 0
    reports.close()


class Interrupted:
    """A process whose first start fails as if the fork server had ended."""

    def __init__(self, failures: list[BaseException]) -> None:
        self.failures = failures

    def start(self) -> None:
        if self.failures:
            raise self.failures.pop()


def test_a_start_is_tried_again_if_the_fork_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmppo.parallel.fork_server.RETRY_SECONDS", 0.0)
    failures: list[BaseException] = [EOFError(), ConnectionResetError()]
    started_process(lambda: Interrupted(failures))
    assert not failures
    with pytest.raises(EOFError):
        started_process(lambda: Interrupted([EOFError()]))
