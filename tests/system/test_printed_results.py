"""What an environment prints does not get into the result of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from public_helpers import python, run_fixture

from shmppo import TrainConfig

FLAGS = ("--trust", "environments")


run_dir = run_fixture(
    TrainConfig(
        env="environments:Prints", num_envs=1, rollout_steps=8, minibatches=1, hidden_size=8, encoder_sizes=(8,),
        workers=0, quiet=True, total_steps=8, check_determinism=0,
    )
)  # fmt: skip


@pytest.mark.usefixtures("environments_importable")
@pytest.mark.long
def test_the_json_of_an_evaluation_is_all_that_stdout_gets(run_dir: Path) -> None:
    done = python("-m", "shmppo.evaluate", run_dir, *FLAGS, "--episodes", 1, "--json")
    assert json.loads(done.stdout)["lengths"] == [7]
    assert {"Python prints this", "a process prints this"} <= set(done.stderr.splitlines())


@pytest.mark.usefixtures("environments_importable")
@pytest.mark.long
def test_the_path_of_an_export_is_all_that_stdout_gets(run_dir: Path) -> None:
    done = python("-m", "shmppo.export", run_dir, *FLAGS, "--format", "torchscript")
    assert Path(done.stdout.removesuffix("\n")) == run_dir / "policy.pt", done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("environments_importable")
def test_the_table_of_check_env_is_all_that_stdout_gets() -> None:
    done = python("-m", "shmppo.check_env", "environments:Prints", "--steps", 20)
    assert done.stdout.startswith("environment "), done.stderr
    assert "prints this" not in done.stdout
