"""Campaigns of random cases: their generators and judges, and the campaigns themselves with `-m slow`.

`pytest -m slow tests/experiments/test_campaigns.py` takes minutes to hours.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from figures.common.campaigns import WRONG, in_fresh_processes, run_campaign
from figures.common.tables import read_rows
from figures.faults import anywhere, disturbances, judge
from figures.faults.measure import campaign
from figures.random_configurations import generate, measure, trainings
from figures.random_configurations import judge as configuration_judge
from figures.suites import install, page
from figures.suites import measure as suites
from figures.suites.suites import Environment
from shmppo import ConfigError, TrainConfig, TrainingError
from shmppo.config.train_config import field_types

# --- campaigns


def rows_of(cases: Any) -> Any:
    return ({"case": case, "outcome": WRONG if case == 3 else "good", "message": ""} for case in cases)


def test_a_campaign_continues_its_table_and_reports_wrong_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "tables" / "cases.csv"
    assert run_campaign(table, 2, rows_of) == 0
    assert run_campaign(table, 5, rows_of) == 1
    assert [row["case"] for row in read_rows(table)] == ["0", "1", "2", "3", "4"]
    assert json.loads(table.with_suffix(".json").read_text())["note"] == "5 cases: 4 good, 1 wrong."
    capsys.readouterr()
    assert run_campaign(table, 5, rows_of, only=[3]) == 1
    assert json.loads(capsys.readouterr().out)["case"] == 3
    assert len(read_rows(table)) == 5


def test_a_case_that_ends_its_process_or_hangs_is_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "import json, os, sys, time",
        "for case in map(int, sys.argv[1:]):",
        "    if case == 2: os._exit(7)",
        "    if case == 4: time.sleep(100)",
        "    print('a line of a library')",
        "    print(json.dumps({'case': case, 'outcome': 'good', 'message': str(os.getpid())}), flush=True)",
    )
    (tmp_path / "cases_for_a_test.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    columns = ("case", "outcome", "message")
    rows = list(in_fresh_processes(["cases_for_a_test"], range(7), every=5, timeout=5.0, columns=columns))
    assert [row["case"] for row in rows] == list(range(7))
    assert [row["outcome"] for row in rows] == ["good", "good", WRONG, "good", WRONG, "good", "good"]
    assert rows[2]["message"] == "the process ended with code 7"
    assert rows[4]["message"] == "hung for 5 s"
    assert rows[0]["message"] == rows[1]["message"] != rows[3]["message"] != rows[5]["message"]


# --- random configurations

GENERATORS = (generate.configuration, generate.command_line, generate.small_configuration, generate.small_command_line)


@pytest.mark.parametrize("draw", GENERATORS)
def test_the_number_of_a_case_determines_its_configuration(draw: Any) -> None:
    first = [repr(draw(case)) for case in range(50)]
    assert first == [repr(draw(case)) for case in range(50)]
    assert len(set(first)) >= 45


def test_every_field_is_drawn_or_left_out_on_purpose() -> None:
    assert set(field_types()) - set(generate.SMALL) <= generate.LEFT_OUT
    assert set(generate.SMALL) <= set(field_types())
    assert not set(generate.SMALL) & generate.LEFT_OUT
    drawn = {name for case in range(600) for name in generate.configuration(case)}
    assert drawn == set(field_types())


def test_random_configurations_are_refused_in_one_sentence_or_accepted() -> None:
    outcomes = [measure.validate(case)[0] for case in range(20)]
    assert set(outcomes) == {"accepted", "refused"}


def test_most_small_configurations_are_valid() -> None:
    valid = 0
    for case in range(60):
        try:
            TrainConfig(**generate.small_configuration(case))
        except ConfigError:
            continue
        valid += 1
    assert 30 <= valid < 60


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), ConfigError(" "), ConfigError("It is a. It is b."), SystemExit(2)],
)
def test_a_bad_refusal_is_wrong(error: BaseException) -> None:
    assert configuration_judge.judge_validation(error)[0] == WRONG
    assert configuration_judge.judge_refusal("--gamma is\n2")[0] == WRONG


def test_a_refusal_is_counted_by_its_flag() -> None:
    assert configuration_judge.judge_validation(ConfigError("--clip is 0; it must …")) == ("refused", "--clip")


def summary(weights: str, *reasons: str) -> dict[str, Any]:
    return {"weights_sha256": weights, "exact": not reasons, "inexact_reasons": list(reasons)}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one hash": ("trained", {"0": summary("a"), "2": summary("a")}),
    "two hashes": (WRONG, {"0": summary("a"), "2": summary("b")}),
    "two hashes, one of them inexact": ("trained", {"0": summary("a"), "2": summary("b", "a reason")}),
    "inexact without a reason": (WRONG, {"0": summary("a"), "2": summary("a") | {"exact": False}}),
    "refused in one variant": (WRONG, {"0": summary("a"), "2": ConfigError("--clip is wrong")}),
    "refused": ("refused", {"0": ConfigError("--clip is wrong"), "2": ConfigError("--clip is wrong")}),
    "foreign error": (WRONG, {"0": ValueError("x"), "2": ValueError("x")}),
    "diverged": ("ended", {"0": TrainingError(0, 0, "not finite"), "2": TrainingError(0, 0, "not finite")}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_judged(name: str) -> None:
    expected, results = VARIANTS[name]
    assert configuration_judge.judge_variants(results)[0] == expected


COMMANDS: list[tuple[str, int, str, list[str]]] = [
    ("trained", 0, "", ["summary.json"]),
    (WRONG, 0, "", []),
    ("refused", 2, "error: --clip is 0", []),
    (WRONG, 2, "error: --clip is 0", ["config.json"]),
    (WRONG, 2, "error: --clip is 0\nerror: --seed is -1", []),
    (WRONG, 2, "usage: train", []),
    (WRONG, 2, "Traceback (most recent call last):\nerror: --clip is 0", []),
    (WRONG, 139, "", []),
    ("ended", 1, "error: minibatch 0 of epoch 0: the loss is not finite", ["config.json"]),
]


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_are_judged(case: tuple[str, int, str, list[str]]) -> None:
    expected, code, stderr, files = case
    assert configuration_judge.judge_command(code, stderr, files)[0] == expected


@pytest.mark.long
@pytest.mark.parametrize(("words", "expected"), [(["--hidden-size", "0"], "refused"), (["--nothing"], "refused")])
def test_a_command_is_run_and_judged(words: list[str], expected: str, tmp_path: Path) -> None:
    assert measure.run_command(words, tmp_path)[0] == expected


@pytest.mark.long
def test_a_small_configuration_trains_in_all_variants() -> None:
    assert trainings.measure(0)["outcome"] == "trained"


# --- disturbed runs

WORKER_KILLED = disturbances.Disturbance(
    "CartPole", 1, 2, "central", "KILL", "worker", 0, "training", 0.5, lasting=False, stopped_by="", resumed_workers=0
)
GOOD = judge.Evidence(
    hit=True, hung=False, codes=[0], stderr=[""], resumed_codes=[], resumed_stderr=[""], same_hash=True, exact=True,
    left_processes=(),
)  # fmt: skip
ONE_LINE = "error: worker 0 died: signal 9"


@pytest.mark.parametrize(
    ("case", "seen", "defect"),
    [
        ({}, {}, ""),
        ({}, {"hung": True}, "hung"),
        ({}, {"left_processes": ["R python"]}, "processes left: R python"),
        ({}, {"same_hash": False}, "other weights"),
        ({}, {"exact": False}, "not exact"),
        ({}, {"codes": [1], "stderr": [ONE_LINE], "resumed_codes": [0]}, "instead of replacing the process"),
        ({"moment": "start"}, {"codes": [1], "stderr": [ONE_LINE], "resumed_codes": [0]}, ""),
        ({"moment": "start"}, {"codes": [1], "stderr": [""], "resumed_codes": [0]}, "0 lines of errors"),
        ({"moment": "start"}, {"codes": [1], "stderr": [f"Traceback\n{ONE_LINE}"], "resumed_codes": [0]}, "traceback"),
        ({"moment": "start"}, {"codes": [-9], "resumed_codes": [0]}, "code -9"),
        ({"target": "learner"}, {"codes": [-9], "resumed_codes": [0]}, ""),
        ({"target": "learner"}, {"codes": [-9], "resumed_codes": [1], "resumed_stderr": ["error: x"]}, "not continue"),
        ({"target": "learner"}, {"codes": [-9], "resumed_codes": [0], "same_hash": False}, "other weights"),
        ({"fault": "none", "target": "", "stopped_by": "INT"}, {"codes": [0], "resumed_codes": [0]}, ""),
        ({"fault": "none", "target": "", "stopped_by": "INT"}, {"codes": [-2], "resumed_codes": [0]}, "code -2"),
        ({"fault": "none", "target": "", "stopped_by": "TERM"}, {"codes": [-15]}, ""),  # it came after the end
        (
            {"fault": "raise", "target": "", "workers": 0, "stopped_by": "TERM"},
            {"codes": [-15], "stderr": [ONE_LINE], "resumed_codes": [0]},
            "",
        ),
    ],
)
def test_the_judge_finds_planted_defects(case: dict[str, Any], seen: dict[str, Any], defect: str) -> None:
    found = judge.defects(dataclasses.replace(WORKER_KILLED, **case), dataclasses.replace(GOOD, **seen))
    assert bool(found) == bool(defect)
    assert defect in "; ".join(found)


def test_the_number_of_a_case_determines_its_disturbance() -> None:
    drawn = [disturbances.draw_disturbance(case) for case in range(300)]
    assert drawn == [disturbances.draw_disturbance(case) for case in range(300)]
    assert {chosen.fault for chosen in drawn} == set(disturbances.FAULTS)
    assert {(chosen.job, chosen.ranks) for chosen in drawn if chosen.fault == "disk"} >= {("CartPole", 1)}
    assert all(chosen.rank < chosen.ranks for chosen in drawn)


# --- suites


def test_the_page_of_the_suites_has_the_tables_of_the_measurement() -> None:
    text = page.PAGE.read_text()
    assert page.with_tables(text) == text


@pytest.mark.parametrize("name", suites.PARTS)
def test_every_measured_environment_of_a_suite_is_still_listed(name: str) -> None:
    part: Any = suites.PARTS[name]
    rows = read_rows(part.TABLE)
    listed = [next(item for item in case if isinstance(item, Environment)) for case in part.CASES]
    names = [(environment.env, " ".join(environment.flags)) for environment in listed]
    assert [(row["env"], row["flags"]) for row in rows] == names[: len(rows)]
    assert rows
    assert [row for row in rows if row["outcome"] == WRONG] == []


@pytest.mark.parametrize(
    ("summaries", "errors", "expected"),
    [
        ([summary("a"), summary("a")], ["", ""], "one hash"),
        ([summary("a"), summary("b")], ["", ""], WRONG),
        ([summary("a"), summary("a", "a reason")], ["", ""], WRONG),
        ([{}, {}], ["code 2: error: no", "code 2: error: no"], "refused"),
        ([summary("a"), {}], ["", "code 2: error: no"], WRONG),
        ([{}, {}], ["code 1: error: no", "code 2: error: no"], WRONG),
    ],
)
def test_trainings_of_suites_are_judged(summaries: list[dict[str, Any]], errors: list[str], expected: str) -> None:
    assert suites.trainings.judge(summaries, errors, reproducible=True)[0] == expected
    if not any(errors):
        assert suites.trainings.judge(summaries, errors, reproducible=False)[0] == "not reproducible"


@pytest.mark.parametrize(
    ("found", "reproducible", "expected"),
    [
        ({"difference": None, "problem": None}, True, "reproducible"),
        ({"difference": "x differs", "problem": None}, False, "not reproducible"),
        ({"difference": None, "problem": None}, False, WRONG),
        ({"difference": "x differs", "problem": None}, True, WRONG),
        ({"difference": None, "problem": "it raises"}, True, WRONG),
        ({"error": "hung"}, False, WRONG),
    ],
)
def test_checks_of_suites_are_judged(found: dict[str, Any], reproducible: bool, expected: str) -> None:
    assert suites.checks.judge(found, reproducible=reproducible) == expected


@pytest.mark.parametrize(
    ("same_hash", "found_by", "reproducible", "expected"),
    [
        (True, None, True, "one hash"),
        (False, None, True, WRONG),
        (True, 500, True, WRONG),
        (False, 500, False, "other hash, reported"),
        (True, 2000, False, "same hash, reported"),
        (False, None, False, WRONG),
    ],
)
def test_resumes_of_suites_are_judged(same_hash: bool, found_by: int | None, reproducible: bool, expected: str) -> None:
    found = {"same_hash": same_hash, "found_by": found_by}
    assert suites.resumes.judge(found, reproducible=reproducible) == expected


def test_conflicts_are_read_from_the_output_of_pip() -> None:
    line = "metaworld 3.0 requires mujoco==3.3.0, but you have mujoco 4.0.0 which is incompatible."
    assert install.conflicts(f"Successfully installed x\n{line}\n", failed=False) == line[:-1]
    assert install.conflicts("ERROR: No matching distribution", failed=True).startswith("failed: ERROR: No matching")


# --- the campaigns


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_failures_and_stops_change_no_bit_and_leave_nothing() -> None:
    rows = list(campaign(faults=200, stops=50, parallel_runs=2))
    assert len(rows) == 250
    assert [row for row in rows if not row["same_hash"]] == []
    assert [row for row in rows if row["left_processes"] or row["left_shared_mappings"]] == []
    assert sum(row["restarts"] for row in rows) >= 100, "too few failures reached a worker"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_disturbances_anywhere_lose_nothing_that_was_saved() -> None:
    rows = list(anywhere.campaign(range(100), parallel_runs=2))
    assert [row for row in rows if row["outcome"] == WRONG] == []
    assert sum(row["hit"] for row in rows) >= 50, "too few faults had an effect"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("part", "cases"), [("validation", 10_000), ("trainings", 200), ("commands", 100)])
def test_random_configurations(part: str, cases: int) -> None:
    rows = measure.PARTS[part][0](range(cases))
    assert [row for row in rows if row["outcome"] == WRONG] == []
