"""The phase timer: the seconds of the phases add up to the time that has passed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from shmppo.utils.phase_timer import COMMUNICATION, LEARNING, PHASES, SAMPLING, CoreShare, PhaseTimer, as_dict


def test_the_phases_add_up_to_the_time_that_has_passed() -> None:
    timer = PhaseTimer()
    began = timer.switch("other")
    timer.reset()
    for phase in PHASES:
        timer.switch(phase)
        time.sleep(0.002)
    ended = timer.switch("other")
    seconds = timer.reset()
    assert seconds.sum() == pytest.approx(ended - began, abs=1e-3)
    assert (seconds > 0.0015).all()


def test_reset_keeps_the_present_phase() -> None:
    timer = PhaseTimer()
    timer.switch("gradient")
    timer.reset()
    time.sleep(0.002)
    seconds = timer.reset()
    assert seconds[PHASES.index("gradient")] > 0.0015
    assert np.count_nonzero(seconds) == 1


def test_blocked_time_is_divided_by_the_mean_of_the_workers_and_keeps_its_sum() -> None:
    timer = PhaseTimer()
    timer.switch("wait")
    time.sleep(0.02)
    timer.switch("other")
    workers = np.zeros((2, len(PHASES)))
    workers[:, PHASES.index("environment")] = 0.006, 0.010
    workers[:, PHASES.index("inference")] = 0.002, 0.004
    before = timer.reset()
    timer._seconds = before.tolist()
    timer.add_blocked(before[PHASES.index("wait")], workers)
    after = timer.reset()
    assert after.sum() == pytest.approx(before.sum(), abs=1e-3)
    assert after[PHASES.index("environment")] == pytest.approx(0.008)
    assert after[PHASES.index("inference")] == pytest.approx(0.003)
    assert after[PHASES.index("wait")] == pytest.approx(before[PHASES.index("wait")] - 0.011)


def test_totals_of_phases() -> None:
    named = as_dict(np.arange(len(PHASES), dtype=float))
    assert set(named) == {*PHASES, "sampling", "learning", "communication"}
    for total, names in (("sampling", SAMPLING), ("learning", LEARNING), ("communication", COMMUNICATION)):
        assert named[total] == sum(named[name] for name in names)
    assert named["sampling"] + named["learning"] + named["communication"] + named["other"] == sum(range(len(PHASES)))


def test_the_share_of_a_core_is_small_while_the_thread_sleeps_and_near_one_while_it_computes() -> None:
    share = CoreShare()
    assert share.take(0.1) is None
    with share:
        time.sleep(0.1)
    slept = share.take(0.1)
    assert slept is not None
    assert slept < 0.5
    assert share.take(0.1) is None, "it is given once"
    share = CoreShare()
    with share:
        began = time.thread_time()
        while time.thread_time() - began < 0.05:
            pass
    computed = share.take(0.0)
    assert computed is not None
    assert 0.0 < computed <= 1.01
