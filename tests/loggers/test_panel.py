"""The panel shows every number that it documents, and fills the terminal's width for any run."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from helpers import idle_control
from rich.console import Console

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import GLOSSARY
from shmppo.loggers.panel import RunPanel
from shmppo.loggers.status import RunStatus
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
