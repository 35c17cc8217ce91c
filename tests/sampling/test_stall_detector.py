"""Stalled workers are found by their progress, in the time for which the learner itself has run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shmppo.lockstep.worker_processes import StallDetector


def test_a_worker_is_not_stalled_because_the_learner_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, progress = SimpleNamespace(now=0.0), np.zeros((2, 2), np.int64)
    monkeypatch.setattr("shmppo.lockstep.worker_processes.time", SimpleNamespace(monotonic=lambda: clock.now))
    detector, seen = StallDetector(progress, timeout=4.0, interval=1.0), []
    for clock.now in (1000.0, 1001.0, 1002.0, 1003.0, 1004.0):
        progress[1, 0] += 1
        seen.append(detector.look([0, 1]))
    assert seen == [([], [])] * 3 + [([0], []), ([], [0])]
