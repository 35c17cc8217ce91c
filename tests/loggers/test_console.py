"""The display in a terminal, in a pipe, and in a notebook, with real processes."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest
from helpers import idle_control
from public_helpers import NO_CHECK, python

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.console import ConsoleDisplay
from shmppo.loggers.status import RunStatus
from shmppo.utils.signals import StopRequest

RUN = (
    "--workers", "2", "--num-envs", "4", "--rollout-steps", "16", "--minibatches", "2", "--seq-len", "8",
    "--hidden-size", "8", "--run-dir", "run", "--stop-at-iteration", "2",
)  # fmt: skip


@pytest.mark.long
def test_a_pipe_gets_a_line_at_the_start_and_one_for_the_last_iteration(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment["PYTHONIOENCODING"] = "ascii"
    result = python("-m", "shmppo.train", *RUN, *NO_CHECK, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    # On a slow machine, lines about the progress come in between.
    progress = ("starting ", "iteration 1: ", "iteration 2: ")
    lines = [line for line in result.stdout.splitlines() if not line.startswith(progress)]
    assert lines[0] == "run: CartPole-v1, observations 1, 3 hidden  4 environments, 2 workers, 2 iterations of 64 steps"
    assert lines[1].startswith("iteration 1/2  steps 64/128  return ")
    assert lines[2].startswith("iteration 2/2  steps 128/128  return ")
    assert lines[3] == "run            run"
    assert lines[-1].endswith("-m shmppo.train --resume run")
    assert "MuJoCo" not in (tmp_path / "run" / "run.log").read_text()


class Broken:
    """An output that was closed."""

    encoding = "utf-8"
    closed = False

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")

    def flush(self) -> None:
        pass


def test_the_run_continues_if_its_output_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status = RunStatus(TrainConfig(num_envs=4, workers=0), tmp_path, StopRequest(), idle_control())
    with contextlib.redirect_stdout(Broken()):  # type: ignore[type-var]
        display = ConsoleDisplay(status)
        display.show({"iteration": 1, "return_mean_100": 0.0}, [0.1], 0, last=True)
        display.close()
        display.close()
    assert caplog.text.count("the output cannot be written (nobody reads)") == 1


@pytest.mark.long
def test_a_line_names_the_iteration_of_its_evaluation(tmp_path: Path) -> None:
    more = ("--workers", "0", "--stop-at-iteration", "3", "--eval-every", "2", "--eval-episodes", "2")
    result = python("-m", "shmppo.train", *RUN, *NO_CHECK, *more, cwd=tmp_path)
    (last,) = [line for line in result.stdout.splitlines() if line.startswith("iteration 3/3")]
    assert re.search(r"  evaluation \S+ ± \S+  at iteration 2  ", last), result.stdout
