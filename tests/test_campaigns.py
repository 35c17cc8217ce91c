"""Campaigns of minutes to hours over real runs, by hand: `pytest -m slow tests/test_campaigns.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).parent.parent / "figures"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_faults_and_stops_cost_no_bit_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FIGURES), *sys.path])
    from measure_faults import campaign

    rows = list(campaign(faults=200, stops=50, side_by_side=2))
    assert len(rows) == 250
    assert [row for row in rows if not row["same_hash"]] == []
    assert [row for row in rows if row["left_processes"] or row["left_shared_mappings"]] == []
    assert sum(row["restarts"] for row in rows) >= 100, "the faults hit nobody"
