"""Failure messages between ranks."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from shmppo.parallel import failure_messages
from shmppo.parallel.failure_messages import FailureMessages


class StuckStore(HashStore):
    """A store whose network is down: its first call blocks."""

    def set_timeout(self, timeout: timedelta) -> None:
        time.sleep(3)


def test_a_store_that_does_not_answer_does_not_block_the_end_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_messages, "GRACE_SECONDS", 0.1)
    messages = FailureMessages(0, 2, StuckStore(), timeout=1.0)
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
