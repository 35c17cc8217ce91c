"""Stalled workers are found by their progress, in the time for which the learner itself has run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shmppo.lockstep.worker_processes import StallDetector

WORKERS: Any = [SimpleNamespace(index=w, process=SimpleNamespace(pid=100 + w)) for w in range(2)]


def test_a_worker_is_not_stalled_because_the_learner_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, progress = SimpleNamespace(now=0.0), np.zeros((2, 2), np.int64)
    monkeypatch.setattr("shmppo.lockstep.worker_processes.time", SimpleNamespace(monotonic=lambda: clock.now))
    detector, seen = StallDetector(progress, timeout=4.0, interval=1.0), []
    for clock.now in (1000.0, 1001.0, 1002.0, 1003.0):
        progress[1, 0] += 1
        seen.append([(worker.index, str(error)) for worker, error in detector.stalled(WORKERS)])
    message = (
        "worker 0 (pid 100) has made no progress for 4 s; run.log may show where it is; if its environment is that "
        "slow, raise --worker-timeout"
    )
    assert seen == [[], [], [], [(0, message)]]
