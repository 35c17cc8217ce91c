"""The console display shows every number that it documents, and fits into 80 columns for any run."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path

import pytest
from rich.console import Console

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.console import ConsoleDisplay, clock, levels, phase_bar, sparkline, worker_line
from shmppo.loggers.metrics import GLOSSARY
from shmppo.utils.phase_timer import PHASES

NAMES = (
    "iteration", "progress", "time left", "return (100)", "length (100)", "episodes", "steps/s", "memory", "KL",
    "clip fraction", "entropy", "explained var.", "policy loss", "value loss", "gradient norm", "learning rate",
    "environment", "inference", "wait", "gradient", "optimizer", "other", "slowest worker",
)  # fmt: skip


def drawn(row: dict[str, float], workers: list[float], memory: int = 2**30, env: str = "CartPole-v1") -> list[str]:
    config = TrainConfig(env=env, workers=len(workers), num_envs=64)
    display = ConsoleDisplay(config, Path("runs/" + env))
    display._history = [math.nan, 1.0, 2.0, 3.0]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(display.panel(row, workers, memory))
    return console.export_text().rstrip("\n").split("\n")


LARGE = dict.fromkeys(GLOSSARY, -123456.789) | {f"{phase}_seconds": 11.1 for phase in PHASES}
UNKNOWN = dict.fromkeys(GLOSSARY, math.nan) | {f"{phase}_seconds": 0.1 for phase in PHASES}


@pytest.mark.parametrize("workers", [1, 2, 4, 40])
@pytest.mark.parametrize("row", [LARGE, UNKNOWN | {"iteration": 1, "wall_seconds": 1.0, "episodes": 0}])
def test_everything_fits_80_columns(row: dict[str, float], workers: int) -> None:
    row = row | {"collect_seconds": 1.0}
    if row is LARGE:
        row["wall_seconds"] = 1e6
    lines = drawn(row, [0.5] * workers, env="a_module_of_my_own:MyVeryOwnEnvironmentWithALongName-v10")
    assert len(lines) == 14
    assert {len(line) for line in lines} == {80}
    text = "\n".join(lines)
    assert [name for name in NAMES if name not in text] == []


def test_the_cells_of_the_phase_bar_are_divided_by_time() -> None:
    row = {f"{phase}_seconds": 0.0 for phase in PHASES}
    row |= {"environment_seconds": 0.5, "gradient_seconds": 0.25, "publish_seconds": 0.15, "reduce_seconds": 0.1}
    bar, names = phase_bar(row, 40).plain.split("\n")
    assert bar == "█" * 20 + "█" * 10 + "▒" * 10
    assert names == "█environment 50% ▓inference 0 ░wait 0 █gradient 25 ▓optimizer 0 ▒other 25"


def test_the_worker_line_shows_how_busy_each_worker_was() -> None:
    assert "80%  slowest worker 1  0 ████░░ 60%  1 ██████ 100%" in worker_line([0.3, 0.5], 0.5, 76).plain
    many = worker_line([0.1 * w for w in range(11)], 1.0, 76).plain
    assert many.endswith("slowest worker 10  ▁▁▂▃▄▅▅▆▇██")
    assert levels([0, 0.5, 1]) == "▁▅█"


def test_the_history_of_a_long_run_is_thinned_out_evenly(tmp_path: Path) -> None:
    display = ConsoleDisplay(TrainConfig(quiet=True), tmp_path)
    for k in range(10_000):
        display.show({"return_mean_100": float(k)}, [], 0, last=False)
    history = display._history
    assert 200 < len(history) <= ConsoleDisplay.MAX_HISTORY
    steps = {b - a for a, b in itertools.pairwise(history)}
    assert len(steps) == 1
    assert history[0] == 0
    assert history[-1] > 10_000 - 2 * steps.pop()


def test_sparkline_and_clock() -> None:
    assert sparkline([math.nan, 0, 7], 10) == "▁█"
    assert sparkline([0, 2, 4, 6], 2) == "▁█"
    assert sparkline([math.nan], 5) == ""
    assert clock(3725.9) == "1:02:05"
