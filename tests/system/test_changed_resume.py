"""Changes of options by a resume: refused if a new run with them has other weights, or else the run is not exact."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from public_helpers import SIX_ITERATIONS as BASE
from public_helpers import refused, summary_of

from shmppo import load_policy, resume, train


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped at iteration 3 of 6."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    train(dataclasses.replace(BASE, stop_at_iteration=3, run_dir=str(run_dir)))
    return run_dir


@pytest.fixture
def run_dir(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


FIXED: dict[str, Any] = {
    "learning_rate": 0.01, "gamma": 0.9, "device": "cuda", "num_envs": 8, "env": "Pendulum-v1",
    "separate_critic": "all", "hide_obs": (1, 3), "init_from": "runs/a", "preempt_fraction": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_a_change_of_the_weights_is_refused_with_the_command_for_a_new_run(name: str, run_dir: Path) -> None:
    flag = f"--{name.replace('_', '-')}"
    before = {path: path.read_bytes() for path in run_dir.iterdir()}
    with refused(f"^{flag} belongs to the run and cannot change when .*train --init-from {run_dir} {flag}"):
        resume(run_dir, **{name: FIXED[name]})
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == before


def test_another_annealing_of_finished_iterations_makes_the_run_inexact_for_good(run_dir: Path) -> None:
    summary = resume(run_dir, anneal_steps=4 * 32 * 9, stop_at_iteration=4)
    reason = "resumed at iteration 3 with --anneal-steps 1152, but the iterations before it had 768"
    assert (summary["exact"], summary["inexact_reasons"]) == (False, [reason])
    assert summary_of(run_dir)["inexact_reasons"] == [reason]
    assert load_policy(run_dir).iteration == 4
    assert resume(run_dir, stop_at_iteration=5)["inexact_reasons"] == [reason]
    assert f"not exact: {reason}" in (run_dir / "run.log").read_text()
