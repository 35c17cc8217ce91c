"""Campaigns of random cases: their generators and judges, and a case of each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from figures.common.campaigns import WRONG, run_campaign
from figures.common.tables import read_rows
from figures.faults import configurations, kills
from shmppo import TrainConfig


def measure(case: int) -> dict[str, Any]:
    return {"case": case, "outcome": WRONG if case == 3 else "good", "message": ""}


def test_a_campaign_continues_its_table_and_reports_wrong_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "tables" / "cases.csv"
    assert run_campaign(table, 2, measure) == 0
    assert run_campaign(table, 5, measure, parallel=2) == 1
    assert [row["case"] for row in read_rows(table)] == ["0", "1", "2", "3", "4"]
    assert json.loads(table.with_suffix(".json").read_text())["note"] == "5 cases: 4 good, 1 wrong."
    capsys.readouterr()
    assert run_campaign(table, 5, measure, only=[3]) == 1
    assert "'case': 3" in capsys.readouterr().out
    assert len(read_rows(table)) == 5


KILLED = kills.Disturbance("CartPole, LSTM", 1, 2, "central", "kill a worker", 0, 5, 0.01, 0)
ONE_LINE = "error: rank 1 has failed"
DEFECTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, ""),
    ({}, {"codes": None}, "hung"),
    ({}, {"codes": [1], "stderr": [ONE_LINE]}, "ended with [1]"),
    ({"moment": 0}, {"codes": [1], "stderr": [ONE_LINE]}, ""),
    ({"moment": 0}, {"codes": [1], "stderr": [""]}, "one sentence"),
    ({"moment": 0}, {"codes": [1], "stderr": [f"Traceback\n{ONE_LINE}"]}, "traceback"),
    ({"fault": "kill a learner"}, {"codes": [-9]}, ""),
    ({"fault": "kill a learner"}, {"codes": [-11, -9], "stderr": ["", ""]}, "rank 1 ended with -9"),
    ({"fault": "kill a learner"}, {"codes": [-9], "resumed": [1]}, "could not be resumed"),
    ({"fault": "stall a learner"}, {"codes": [1], "stderr": [ONE_LINE]}, "ended with [1]"),
    ({"fault": "SIGTERM"}, {"codes": [-15]}, "rank 0 ended with -15"),
    ({"fault": "SIGTERM", "moment": 0}, {"codes": [-15]}, ""),
]


@pytest.mark.parametrize(("choices", "seen", "defect"), DEFECTS)
def test_the_judge_of_disturbed_runs_finds_planted_defects(
    choices: dict[str, Any], seen: dict[str, Any], defect: str
) -> None:
    good: dict[str, Any] = {"hit": True, "codes": [0], "stderr": [""], "resumed": []}
    found = kills.defects(dataclasses.replace(KILLED, **choices), **(good | seen))
    assert bool(found) == bool(defect)
    assert defect in "; ".join(found)


@pytest.mark.parametrize(
    ("results", "outcome"),
    [
        ([(0, "", "a"), (0, "", "a")], "one hash"),
        ([(0, "", "a"), (0, "", "b")], WRONG),
        ([(0, "", "a"), (2, "error: x", "")], WRONG),
        ([(2, "error: x", "")], "refused"),
        ([(2, "", "")], WRONG),
        ([(2, "error: x", "left a run directory")], WRONG),
        ([(2, "Traceback (most recent call last)", "")], WRONG),
        ([(1, "error: the loss is not finite", ""), (1, "error: the loss is not finite", "")], "ended"),
        ([(-11, "", ""), (-11, "", "")], WRONG),
    ],
)
def test_configurations_are_judged(results: list[tuple[int, str, str]], outcome: str) -> None:
    assert configurations.judge(results)[0] == outcome


def test_every_flag_of_the_random_configurations_exists() -> None:
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    assert {name.removeprefix("no-").replace("-", "_") for name in configurations.VALUES} <= fields


@pytest.mark.slow(reason="about 2 min: three cases with several runs each")
def test_a_case_of_each_campaign() -> None:
    killed = next(c for c in range(100) if kills.draw_disturbance(c).fault == "kill a worker")
    stopped = next(c for c in range(100) if kills.draw_disturbance(c).fault == "SIGTERM")
    rows = [kills.measure(killed), kills.measure(stopped), configurations.measure(0)]
    assert [row for row in rows if row["outcome"] == WRONG] == []
