"""The determinism guarantee: no number of workers, killed worker, or stop changes a bit of a run.

Each case of `tests/cases.py` is trained once without a disturbance. A disturbed run must have the same metrics, hashes
of the weights after each iteration, and evaluations. In the fast and the long tests, each case has one disturbed run,
and one case has all disturbances; the other pairs take 5 to 10 minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES, DISTURBANCES, SEEDED_ONCE, Disturbance, assert_same_numbers, disturb, undisturbed

DEFAULT = "lstm"
RESTORED = (
    "gru-plain", "feed-forward-plain", "torch", "agents", "self-play", "teacher", "schedule", "auxiliary",
    "joint-actions", "snapshots", "vector", "failed-episodes", "evaluations", "decisions", SEEDED_ONCE,
)  # fmt: skip
"""Cases whose fast test kills a worker: their environments, states, and decisions are restored in different ways."""
RESTORED_LATER = ("evaluations-of-mujoco", "acting-on-device")
"""Cases whose long test does."""
CHEAPEST = "a stop without workers"
WITHOUT_REPLAY = ("no worker", "four workers", "central learning", "sharded learning", "one worker")


OTHER_PAIRS = pytest.mark.slow(reason="5 to 10 min in all")


def pairs() -> list[object]:
    """All cases with all disturbances; those that the fast tests leave out are marked as long or slow."""
    found = []
    for case in CASES:
        possible = WITHOUT_REPLAY if case == SEEDED_ONCE else tuple(DISTURBANCES)
        fast = possible if case == DEFAULT else possible[-1:] if case in (*RESTORED, *RESTORED_LATER) else (CHEAPEST,)
        for how in possible:
            marks = () if case in (DEFAULT, *RESTORED) else pytest.mark.long
            found.append(pytest.param(case, how, id=f"{case}-{how}", marks=marks if how in fast else OTHER_PAIRS))
    return found


@pytest.mark.parametrize(("case", "how"), pairs())
def test_a_disturbance_changes_no_number(case: str, how: str, shared_directory: Path, tmp_path: Path) -> None:
    expected = undisturbed(case, shared_directory)
    summary = disturb(case, DISTURBANCES[how], tmp_path / "run")
    assert summary["exact"], summary["inexact_reasons"]
    assert_same_numbers(tmp_path / "run", expected)


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow(reason="about 5 s"))])
def test_sums_and_optimizer_steps_that_workers_share_change_no_number(
    workers: int, shared_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By default, so small a network is not divided."""
    for name in ("MIN_DIVIDED_SUM", "MIN_DIVIDED_STEP"):
        monkeypatch.setattr(f"shmppo.lockstep.share.{name}", 0)
    expected = undisturbed(DEFAULT, shared_directory)
    disturb(DEFAULT, Disturbance(workers), tmp_path / "run")
    assert_same_numbers(tmp_path / "run", expected)


@pytest.mark.parametrize("case", ["feed-forward-plain", pytest.param("per-dimension-plain", marks=OTHER_PAIRS)])
def test_mujoco_tasks_that_gymnasium_steps_change_no_number(case: str, shared_directory: Path, tmp_path: Path) -> None:
    expected = undisturbed(case, shared_directory)
    disturb(case, Disturbance(0, {"env_backend": "gymnasium"}), tmp_path / "run")
    assert_same_numbers(tmp_path / "run", expected)
