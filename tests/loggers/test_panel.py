"""The panel shows every number that it documents, and fills the terminal's width for any run."""

from __future__ import annotations

import io
import math
import signal
from pathlib import Path

import pytest
from helpers import idle_control
from rich.console import Console

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import GLOSSARY
from shmppo.loggers.panel import RunPanel, phase_bar, worker_line
from shmppo.loggers.status import RunStatus, evaluation_text
from shmppo.loggers.views import row_line
from shmppo.utils.phase_timer import PHASES, PhaseTimer
from shmppo.utils.signals import StopRequest

NAMES = (
    "iteration", "steps", "elapsed", "left", "return (100)", "length (100)", "episodes", "steps/s", "memory",
    "approx KL", "clip fraction", "entropy", "explained var.", "policy loss", "value loss", "gradient norm",
    "learning rate", "env", "infer", "wait", "grad", "optim", "other", "slowest worker",
)  # fmt: skip


def status_of(workers: int = 2, env: str = "CartPole-v1") -> RunStatus:
    config = TrainConfig(env=env, workers=workers, num_envs=64)
    return RunStatus(config, Path("runs/" + env), StopRequest(), idle_control())


def lines_of(status: RunStatus, width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    Console(width=width, file=file).print(RunPanel(status))
    file.seek(0)
    return file.read().rstrip("\n").split("\n")


LARGE = dict.fromkeys(GLOSSARY, -123456.789) | {f"{phase}_seconds": 11.1 for phase in PHASES}
LARGE |= {"iteration": 3, "wall_seconds": 1e6, "collect_seconds": 1.0}
UNKNOWN = dict.fromkeys(GLOSSARY, math.nan) | {f"{phase}_seconds": 0.1 for phase in PHASES}
UNKNOWN |= {"iteration": 1, "wall_seconds": 1.0, "episodes": 0, "env_steps": 1, "collect_seconds": 1.0}
UNKNOWN |= {"steps_per_second": 1.0, "learning_rate": 1e-3}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("workers", [1, 2, 40])
@pytest.mark.parametrize("row", [LARGE, UNKNOWN])
def test_everything_fits_the_width_of_the_terminal(row: dict[str, float], workers: int, width: int) -> None:
    status = status_of(workers, "a_module_of_my_own:MyVeryOwnEnvironmentWithALongName-v10")
    status.timer = PhaseTimer()
    status.add(row, [0.5] * workers, 2**30)
    lines = lines_of(status, width)
    assert {len(line) for line in lines} == {width}
    assert len(lines) <= 15
    text = "\n".join(lines)
    assert [name for name in NAMES if name not in text] == []
    assert "nan" not in text


@pytest.mark.parametrize("width", [60, 120])
def test_the_first_three_metrics_of_info_are_shown(width: int) -> None:
    status = status_of()
    numbers = {"info/is_success": 0.25, "info/reward/a_very_long_name": 1e6, "info/third": math.nan, "info/fourth": 1.0}
    status.add(LARGE | numbers, [0.5, 0.5], 2**30)
    lines = lines_of(status, width)
    assert {len(line) for line in lines} == {width}
    text = "\n".join(lines)
    assert "is_success" in text
    assert "0.250" in text
    assert "reward/a_very" in text
    assert "third" in text
    assert "fourth" not in text
    assert "is_success 0.250  reward/a_very_long_name 1,000,000  third -  " in row_line(status)


def test_metrics_of_info_may_have_any_name() -> None:
    status = status_of()
    status.add(LARGE | {"info/x [bold]": 7.0, "info/memory": 0.125, "info/entropy": 2.5}, [0.5, 0.5], 2**30)
    text = "\n".join(lines_of(status, 200))
    assert "x [bold]" in text
    for shown in ("0.125", "2.50", "1,024 MiB"):
        assert shown in text


@pytest.mark.parametrize("failed", [0, 1370])
def test_failed_episodes_are_shown(failed: int) -> None:
    status = status_of()
    status.add(LARGE | {"episodes": 12, "failed_episodes": failed}, [0.5, 0.5], 2**30)
    assert ("12 + 1,370 failed " in "\n".join(lines_of(status, 80))) is (failed > 0)
    assert ("failed 1,370  " in row_line(status)) is (failed > 0)


@pytest.mark.parametrize("width", [80, 120])
def test_the_last_evaluation_is_shown(width: int) -> None:
    status = status_of()
    status.add(LARGE, [0.5, 0.5], 2**30)
    assert "evaluation" not in "\n".join(lines_of(status, width))
    assert "evaluation" not in row_line(status)
    status.evaluation = {"iteration": 1200, "eval/return": 9.5, "eval/return_std": 1.25}
    assert "evaluation     9.500 ± 1.250  at iteration 1,200 " in "\n".join(lines_of(status, width))
    status.evaluation |= {"eval/info/far": 2.0, "eval/info/is_success": 0.8}
    lines = lines_of(status, width)
    assert {len(line) for line in lines} == {width}
    text = "\n".join(lines)
    assert "is_success 0.800  at" in text
    assert "far" not in text, "success is what users look for"
    assert "evaluation 9.500 ± 1.250  is_success 0.800  " in row_line(status)
    del status.evaluation["eval/info/is_success"]
    assert evaluation_text(status.evaluation) == "9.500 ± 1.250  far 2.000"


def test_bars_grow_with_the_terminal() -> None:
    status = status_of()
    status.add(UNKNOWN, [0.5, 0.5], 0)
    full, narrow = ("".join(lines_of(status, width)).count("█") for width in (160, 80))
    assert full - narrow == 80


def test_before_the_first_iteration_the_panel_shows_what_starts() -> None:
    status = status_of(2)
    text = "\n".join(lines_of(status, 80))
    assert "starting 2 workers and their environments" in text
    assert "iteration 0 /" in text
    assert "entropy" not in text


def test_a_run_without_a_finished_episode_says_so() -> None:
    status = status_of()
    status.add(UNKNOWN, [0.5, 0.5], 0)
    assert "no episode finished yet" in "\n".join(lines_of(status, 60))


def test_after_ctrl_c_the_panel_says_when_the_run_stops() -> None:
    status = status_of()
    status.stop.signal = signal.SIGINT
    text = "\n".join(lines_of(status, 80))
    assert "stopping after this iteration (press Ctrl-C again to stop at once)" in text


def test_the_last_panel_of_a_stopped_run_says_where_it_stopped() -> None:
    status = status_of()
    status.stop.signal = signal.SIGINT
    status.add(UNKNOWN | {"iteration": 12}, [0.5, 0.5], 0)
    status.ended = True
    text = "\n".join(lines_of(status, 80))
    assert f"stopped after iteration 12 of {status.config.last_iteration}" in text
    assert "Ctrl-C" not in text


def test_the_cells_of_the_phase_bar_are_divided_by_time() -> None:
    row = {f"{phase}_seconds": 0.0 for phase in PHASES}
    row |= {"environment_seconds": 0.5, "gradient_seconds": 0.25, "publish_seconds": 0.15, "reduce_seconds": 0.1}
    bar, names = phase_bar(row, 80)
    assert [(span.end - span.start, span.style) for span in bar.spans] == [(40, "green"), (20, "blue"), (20, "yellow")]
    assert names.plain.rstrip() == "environment 50% inference 0% wait 0% gradient 25% optimizer 0% other 25%"


def test_the_worker_line_shows_how_busy_each_worker_was() -> None:
    assert worker_line([0.3, 0.5], 0.5).plain == "busy while sampling 80%  slowest worker 1  ▅█  60% 100%"
    many = worker_line([0.1 * w for w in range(11)], 1.0).plain
    assert "slowest worker 10  ▁▁▂▃▄▅▅▆▇██  0% 10%" in many
