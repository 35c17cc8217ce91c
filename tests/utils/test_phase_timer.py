"""The phase timer: the seconds of the phases add up to the time that has passed."""

from __future__ import annotations

import time

import numpy as np
import pytest

import shmppo.utils.phase_timer as module
from shmppo.utils.phase_timer import PHASES, PhaseTimer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds. It stands still until a test changes it."""
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_the_phases_add_up_to_the_time_that_has_passed(clock: list[float]) -> None:
    timer = PhaseTimer()
    for i, phase in enumerate(PHASES):
        timer.switch(phase)
        clock[0] += 0.25 * i
    assert timer.switch("other") == clock[0]
    assert timer.reset() == pytest.approx(0.25 * np.arange(len(PHASES)))


def test_the_timer_measures_the_time_of_the_monotonic_clock() -> None:
    began = time.monotonic()
    timer = PhaseTimer()
    time.sleep(0.002)
    seconds = timer.reset()
    assert 0.002 <= seconds[PHASES.index("other")] <= time.monotonic() - began


def test_reset_keeps_the_present_phase(clock: list[float]) -> None:
    timer = PhaseTimer()
    timer.switch("gradient")
    timer.reset()
    clock[0] += 0.25
    seconds = timer.reset()
    assert seconds[PHASES.index("gradient")] == 0.25
    assert np.count_nonzero(seconds) == 1


def test_blocked_time_is_divided_by_the_mean_of_the_workers_and_keeps_its_sum(clock: list[float]) -> None:
    timer = PhaseTimer()
    timer.switch("wait")
    clock[0] += 0.02
    timer.switch("other")
    workers = np.zeros((2, len(PHASES)))
    workers[:, PHASES.index("environment")] = 0.006, 0.010
    workers[:, PHASES.index("inference")] = 0.002, 0.004
    timer.add_blocked(0.02, workers)
    after = timer.reset()
    assert after.sum() == pytest.approx(0.02)
    assert after[PHASES.index("environment")] == pytest.approx(0.008)
    assert after[PHASES.index("inference")] == pytest.approx(0.003)
    assert after[PHASES.index("wait")] == pytest.approx(0.02 - 0.011)
