"""The queue of experiments of returns: its order, its cases, and the tables that it fills."""

from __future__ import annotations

import importlib
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from figures.common import evaluated_runs
from figures.common.evaluated_runs import add_run
from figures.common.results import results_table
from figures.common.tables import append_rows, read_rows, write_rows
from figures.fixed_points import measure as fixed_points
from figures.fixed_points import plot
from figures.popgym import measure as popgym
from figures.popgym.cases import PUBLISHED as PUBLISHED_POPGYM
from figures.published.measure import PUBLISHED, occluded
from figures.scoreboard import measure, tables
from shmppo.config.flags import parse_start
from shmppo.plotting.curves import read_columns

TINY = (
    "-m", "shmppo.train", "--env", "Pendulum-v1", "--core", "none", "--encoder-sizes", 8, "--num-envs", 4,
    "--rollout-steps", 250, "--minibatches", 4, "--epochs", 2, "--total-steps", 3000, "--kl-profile-every", 2,
    "--eval-every", 1, "--eval-episodes", 1,
)  # fmt: skip
COMPARED_CASE = {"task": "Pendulum", "shape": "500x100", "minibatches": "1000x50", "objective": "clip", "steps": "3000"}


def run_modules(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, list[Any]]]:
    """Run all commands of the queue without training. Returns (table, seed, key or arguments) of each case."""
    cases: list[tuple[str, int, list[Any]]] = []
    monkeypatch.setattr(popgym, "measure", lambda key, config, table: cases.append(("popgym", key["seed"], [key])))
    for module, *words in measure.commands():
        script = importlib.import_module(f"figures.{module}")
        monkeypatch.setattr(script, "has_row", lambda table, key: False, raising=False)
        monkeypatch.setattr(
            script, "add_run", lambda table, key, seed, args, **_: cases.append((table.stem, seed, args)), raising=False
        )
        monkeypatch.setattr(script, "measure_search", lambda task: cases.append(("search", 1, [task])), raising=False)
        monkeypatch.setattr(
            script, "measure_fresh", lambda task, name, seed, path: cases.append(("fresh", seed, [name])), raising=False
        )
        monkeypatch.setattr(script, "append_rows", lambda table, rows: None, raising=False)
        monkeypatch.setattr("sys.argv", [module, *words])
        script.main()
    return cases


def test_the_queue_has_the_cases_of_the_published_tables_and_trains_first_seeds_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(popgym, "TABLE", Path("none.csv"))
    cases = run_modules(monkeypatch)
    seeds = [seed % 100 for _, seed, _ in cases]
    assert seeds == sorted(seeds), "one seed of every row comes before second seeds"
    counts = {table: sum(case[0] == table for case in cases) for table in dict.fromkeys(case[0] for case in cases)}
    assert list(counts)[:4] == ["fixed_points", "popgym", "occluded", "zoo"]
    assert counts["fixed_points"] == 4 * 4 * 10
    assert (counts["occluded"], counts["zoo"]) == (5 * 16, 5 * 4)
    rows = [case[0]["task"] for table, seed, case in cases if (table, seed) == ("popgym", 1)]
    assert set(PUBLISHED_POPGYM) < set(rows)
    programs = [arguments for _, _, arguments in cases if list(arguments[:2]) == ["-m", "shmppo.train"]]
    assert len(programs) > 200
    for flags in {" ".join(map(str, arguments[2:])) for arguments in programs}:
        parse_start(shlex.split(flags))


def test_an_experiment_that_fails_does_not_end_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "QUEUE", [("fails --seeds {seed}", 2), ("works --seeds {seed}", 1)])
    monkeypatch.setattr("sys.argv", ["measure"])
    called = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        called.append(" ".join(command[2:]))
        return subprocess.CompletedProcess(command, int("fails" in command[2]))

    monkeypatch.setattr(subprocess, "run", run)
    assert measure.main() == 1
    assert called == ["figures.fails --seeds 1", "figures.works --seeds 1", "figures.fails --seeds 2"]


@pytest.mark.parametrize(
    ("robot", "seen", "visible"),
    [
        ("Hopper", "P", [0, 1, 2, 6, 7, 8, 10, 12, 14]),
        ("Hopper", "V", [3, 4, 5, 9, 11, 13]),
        ("Walker", "P", [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21]),
        ("Ant", "V", [3, 4, 5, 9, 11, 13, 15, 17, 19, 21, 23]),
        ("HalfCheetah", "P", [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25]),
    ],
)
def test_occluded_robots_see_what_pomdp_baselines_lists(robot: str, seen: str, visible: list[int]) -> None:
    arguments = occluded(robot, seen, "gru")
    hidden = arguments[arguments.index("--hide-obs") + 1 :]
    size = {"Hopper": 15, "Walker": 22, "Ant": 28, "HalfCheetah": 26}[robot]
    assert sorted([*visible, *hidden]) == list(range(size))


@pytest.mark.long
def test_the_kl_of_a_finished_run_goes_into_the_table_and_the_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    table = tmp_path / "fixed_points.csv"
    monkeypatch.setattr(evaluated_runs, "RUNS", tmp_path / "runs")
    for module in (fixed_points, plot, tables):
        monkeypatch.setattr(module, "FIXED_POINTS" if module is tables else "TABLE", table)
    seen = {}

    def kl_columns(run_dir: Path) -> dict[str, Any]:
        seen.update(read_columns(run_dir / "kl.csv"))
        return fixed_points.kl_columns(run_dir)

    for seed in (1, 2):
        add_run(table, COMPARED_CASE, seed, TINY, episodes=3, more=kl_columns)
    row = read_rows(table)[-1]
    add_run(table, COMPARED_CASE | {"minibatches": "500x100"}, 1, TINY, more=fixed_points.kl_columns)
    assert len(list((tmp_path / "profiles").iterdir())) == 2, "only the compared settings have profiles"
    assert float(row["gamma"]) == pytest.approx(seen["gamma"].mean(), rel=1e-4)
    assert row["episodes"] == "3"
    profile = read_rows(tmp_path / "profiles" / "Pendulum-500x100-1000x50-clip-3000-s2.csv")
    assert {int(point["iteration"]) for point in profile} == set(seen["iteration"].astype(int))
    assert len(profile) == 33 * len(seen["iteration"])
    assert len(read_rows(tmp_path / "evaluations" / "Pendulum-500x100-1000x50-clip-3000-s2.csv")) == 3
    assert "| Pendulum | 500x100 | 1000x50 | clip | 3,000 | 2 |" in tables.tables()[table.with_suffix(".md")]
    monkeypatch.setattr("sys.argv", ["plot"])
    plot.main()
    assert "Pendulum: KL" in table.with_suffix(".svg").read_text()


def test_the_written_tables_are_up_to_date() -> None:
    assert {path: path.read_text() for path in tables.tables()} == tables.tables()


def test_a_table_shows_the_spread_and_what_falls_short(tmp_path: Path) -> None:
    table = tmp_path / "occluded.csv"
    rows = [
        {"task": task, "core": "lru", "seed": seed, "env_steps": 1_500_000, "evaluate_return": value, "episodes": 20}
        for task, seed, value in [("Ant-P", 1, 1000), ("Ant-P", 2, 2000), ("Ant-P", 3, 3000), ("Ant-V", 1, 691)]
    ]
    write_rows(table, [row | {"commit": "abcdef0"} for row in rows], note=None)
    append_rows(table, [rows[-1] | {"task": "Hopper-V", "evaluate_return": 400.0, "commit": "abcdef0 1234567"}], None)
    text = results_table(table, "x", ["task", "core"], "evaluate_return", published=PUBLISHED["occluded"])
    assert "| Ant-P | lru | 1,500,000 | 3 | 2,000 ± 1,000 | 1,000 to 3,000 | 2,103 (−103) |" in text
    assert "| Ant-V | lru | 1,500,000 | 1 | 691 |  | 690 (+1) | 1,137 (−446) | 1,971 (−1,280) |" in text
    assert "| Walker-V | not yet | not yet | not yet | not yet | not yet | 423 | 160 | 1,901 |" in text
    assert "(20 episodes)" in text
    assert "*at commits* abcdef0, 1234567." in text


def test_further_seeds_are_trained_of_cases_that_ended_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(popgym, "TABLE", tmp_path / "popgym.csv")
    trained = []
    monkeypatch.setattr(popgym, "measure", lambda key, config, table: trained.append((key["task"], key["seed"])))
    key = {"core": "gru", "variant": "preset", "seed": 1, "steps": 15_000_000}
    ends = {"RepeatFirstEasy": 4_000_000, "AutoencodeEasy": 15_007_744}
    write_rows(popgym.TABLE, [{"task": task, **key, "env_steps": end} for task, end in ends.items()], note=None)
    monkeypatch.setattr("sys.argv", ["measure", "--tasks", *ends, "RepeatFirstHard", "--seeds", "1", "2"])
    popgym.main()
    assert trained == [("RepeatFirstHard", 1), ("RepeatFirstEasy", 2), ("RepeatFirstHard", 2)]
