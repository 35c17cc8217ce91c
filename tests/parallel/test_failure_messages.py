"""Failure messages between ranks if a process has no memory for another thread."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import pytest
from torch.distributed import HashStore

from shmppo.parallel import failure_messages
from shmppo.parallel.failure_messages import FailureMessages


def no_thread(*arguments: Any) -> int:
    raise RuntimeError("can't start new thread")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", [lambda *arguments: 1, no_thread], ids=["never begins", "refused"])
def test_a_thread_that_cannot_begin_does_not_block_the_end_of_a_rank(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_messages, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(_thread, "start_new_thread", start)
    monkeypatch.setattr(threading, "_start_new_thread", start)
    messages = FailureMessages(0, 2, HashStore(), timeout=1.0)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    messages.report("out of memory")
    assert "the store at localhost:1 does not answer" in str(messages.diagnose(RuntimeError("x"), 1.0))


def test_a_message_reaches_the_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_messages, "GRACE_SECONDS", 10.0)
    store = HashStore()
    FailureMessages(1, 2, store, timeout=1.0).report("out of memory")
    error = FailureMessages(0, 2, store, timeout=1.0).diagnose(RuntimeError("x"), 1.0)
    assert str(error) == "rank 1 failed: out of memory; resume from the last checkpoint with --resume"
