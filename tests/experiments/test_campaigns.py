"""Campaigns of minutes to hours over real runs: `pytest -m slow tests/experiments/test_campaigns.py`."""

from __future__ import annotations

import pytest

from figures.faults.measure import campaign


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_failures_and_stops_change_no_bit_and_leave_nothing() -> None:
    rows = list(campaign(faults=200, stops=50, parallel_runs=2))
    assert len(rows) == 250
    assert [row for row in rows if not row["same_hash"]] == []
    assert [row for row in rows if row["left_processes"] or row["left_shared_mappings"]] == []
    assert sum(row["restarts"] for row in rows) >= 100, "too few failures reached a worker"
