"""The queue of experiments of returns: its order, its cases, and the tables that it fills."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any

import pytest
from public_helpers import exit_code

from figures.popgym import measure as popgym
from figures.popgym.cases import PUBLISHED as PUBLISHED_POPGYM
from figures.published.measure import occluded
from figures.scoreboard import measure, tables
from shmppo.config.flags import parse_start


def run_modules(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, list[Any]]]:
    """Run all commands of the queue without training. Returns (table, seed, key or arguments) of each case."""
    cases: list[tuple[str, int, list[Any]]] = []
    stand_ins: dict[str, Any] = {
        "TABLE": Path("none.csv"),
        "measure": lambda key, config, table: cases.append(("popgym", key["seed"], [key])),
        "has_row": lambda table, key: False,
        "add_run": lambda table, key, seed, args, **_: cases.append((table.stem, seed, args)),
        "measure_search": lambda task: cases.append(("search", 1, [task])),
        "measure_fresh": lambda task, name, seed, path: cases.append(("fresh", seed, [name])),
        "append_rows": lambda table, rows: None,
    }
    for module, *words in measure.commands():
        script = importlib.import_module(f"figures.{module}")
        for name, stand_in in stand_ins.items():
            if script is popgym or name not in ("TABLE", "measure"):
                monkeypatch.setattr(script, name, stand_in, raising=False)
        exit_code(script.main, words)
    return cases


@pytest.mark.long
def test_the_queue_has_the_cases_of_the_published_tables_and_trains_first_seeds_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    flag_lines = sorted({" ".join(map(str, arguments[2:])) for arguments in programs})
    for flags in flag_lines[::8]:
        parse_start(shlex.split(flags))


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


def test_the_written_tables_are_up_to_date() -> None:
    assert {path: path.read_text() for path in tables.tables()} == tables.tables()
