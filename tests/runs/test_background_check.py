"""The check of the environment in the background of a run (--check-determinism)."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import clone_of_recording
from public_helpers import SIX_ITERATIONS, checking, exit_code, train_in, wait_for_the_check, worker_processes

from shmppo import check_env, resume, train
from shmppo.envs.determinism_check import CheckNote, CheckProcesses, Finding
from shmppo.envs.inspection import inspect_task

pytestmark = pytest.mark.usefixtures("background_check")
SMALL = dataclasses.replace(SIX_ITERATIONS, rollout_steps=16, total_steps=4 * 64)


def log_of(run_dir: Path) -> str:
    return (run_dir / "run.log").read_text()


def test_a_run_that_ends_before_the_check_says_so_in_its_log(tmp_path: Path) -> None:
    summary = train_in(tmp_path / "run", SMALL, check_determinism=10**8)
    assert (summary["exact"], summary["environment_check"]) == (None, "not finished")
    assert "not checked for reproducibility: the run ended before the check" in log_of(tmp_path / "run")
    assert not checking()


@pytest.mark.long
def test_a_check_that_has_passed_counts_after_a_resume(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, check_determinism=50, stop_at_iteration=2, run_dir=str(tmp_path / "run"))
    assert train(config, callback=wait_for_the_check)["environment_check"] == "passed"
    summary = resume(tmp_path / "run", check_determinism=10**8)
    assert (summary["exact"], summary["environment_check"]) == (True, "passed")


@pytest.mark.long
def test_a_check_that_has_passed_counts_for_later_runs_of_the_environment(
    remembered_checks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code(check_env.main, ["CartPole-v1", "--steps", "50"]) == 0

    def verdict(name: str, **changes: Any) -> str:
        verdict: str = train_in(tmp_path / name, SMALL, check_determinism=50, **changes)["environment_check"]
        return verdict

    monkeypatch.setattr(CheckProcesses, "poll", lambda self: None)  # the check of the run does not finish
    assert verdict("same", seed=9, hide_obs=(1, 3), gamma=0.9) == "passed"
    assert verdict("kwargs", env_kwargs={"sutton_barto_reward": True}) == "not finished"
    assert train_in(tmp_path / "more", SMALL, check_determinism=51)["exact"] is None
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    (tmp_path / "package-2.0.dist-info").mkdir()
    assert verdict("version") == "not finished"


@pytest.mark.usefixtures("remembered_checks")
def test_a_note_is_about_the_longest_check_and_a_difference_counts_until_a_longer_one_has_passed() -> None:
    results = [Finding(50), Finding(2000), Finding(500), Finding(3000, None, "it hangs"), Finding(700, "obs"),
               Finding(500), Finding(5000)]  # fmt: skip
    noted = []
    for result in results:
        CheckNote(SMALL).remember(result)
        noted.append(CheckNote(SMALL).steps)
    assert noted == [50, 2000, 2000, 2000, -701, -701, 5000]


@pytest.mark.usefixtures("remembered_checks")
def test_a_check_is_about_the_code_at_its_beginning_in_all_modules_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "checked_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from checked_package.core import Env\n")
    (package / "core.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Env\n")
    monkeypatch.syspath_prepend(package.parent)
    config = dataclasses.replace(SMALL, env="checked_package:Env")
    inspect_task(config)
    note = CheckNote(config)
    (package / "core.py").write_text("# changed while the check runs\n")
    note.remember(Finding(500))
    assert (note.steps, CheckNote(config).steps) == (500, 0)


@pytest.mark.usefixtures("remembered_checks")
def test_a_note_depends_on_what_the_environment_imports_and_not_on_what_else_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator, plotting = tmp_path / "simulator_of_a_user.py", tmp_path / "plotting_of_a_user.py"
    simulator.write_text("from gymnasium.envs.classic_control import CartPoleEnv\n")
    plotting.write_text("")
    (tmp_path / "env_of_a_user.py").write_text("from simulator_of_a_user import CartPoleEnv as Env\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = dataclasses.replace(SMALL, env="env_of_a_user:Env")
    CheckNote(config).remember(Finding(500))
    monkeypatch.chdir(tmp_path)
    importlib.import_module(plotting.stem)
    assert CheckNote(config).steps == 500
    simulator.write_text("# changed\n")
    assert CheckNote(config).steps == 0


@pytest.mark.long
def test_an_environment_that_differs_is_forgotten(remembered_checks: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, env="hidden_state:StringSet", check_determinism=50)
    inspect_task(config)  # imports the module of the environment, whose code counts
    CheckNote(config).remember(Finding(500))
    summary = train_in(tmp_path / "run", config, callback=wait_for_the_check)
    assert (summary["exact"], summary["environment_check"]) == (False, "failed")
    (note,) = remembered_checks.iterdir()
    assert json.loads(note.read_text())[0] < 0


def test_an_environment_that_is_not_stepped_is_not_checked(tmp_path: Path) -> None:
    config = clone_of_recording(SMALL, tmp_path / "a.npz")
    summary = train_in(tmp_path / "run", config)
    assert (summary["exact"], summary["environment_check"]) == (True, "none")


@pytest.mark.slow(reason="about 15 s")
def test_the_check_does_not_change_the_weights(tmp_path: Path) -> None:
    hashes = set()
    for steps in (0, 10, 200):
        run_dir = tmp_path / str(steps)
        summary = train_in(run_dir, SMALL, check_determinism=steps, callback=wait_for_the_check)
        assert summary["exact"]
        assert summary["environment_check"] == ("passed" if steps else "none")
        hashes.add(summary["weights_sha256"])
        assert (f"the same bits in {steps} checked steps" in log_of(run_dir)) == (steps > 0)
    assert len(hashes) == 1


@pytest.mark.slow(reason="about 10 s")
def test_a_check_that_hangs_ends_with_the_run(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, env="hidden_state:FailsElsewhere", run_dir=str(tmp_path / "run"))
    config = dataclasses.replace(config, env_kwargs={"how": "hang", "owner": os.getpid()})
    deadline = time.monotonic() + 200

    def both_run(row: dict[str, float]) -> bool:
        while len(checking()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return False

    assert train(config, callback=both_run)["exact"] is None
    assert not worker_processes()
    assert "the run ended before the check" in log_of(tmp_path / "run")


@pytest.mark.slow(reason="5 s")
def test_the_check_ends_with_the_processes_that_its_environments_have_started() -> None:
    env_kwargs = {"how": "simulator", "owner": os.getpid()}
    config = dataclasses.replace(SMALL, env="hidden_state:FailsElsewhere", env_kwargs=env_kwargs)
    deadline = time.monotonic() + 200
    with contextlib.closing(CheckProcesses(config, inspect_task(config), 10, background=False)):
        while len(found := [p for one in checking() for p in one.children() if p.name() == "sleep"]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # Linux (autogroup) gives each session the same time, whatever the priorities of its processes.
        assert {os.getsid(one.pid) for one in checking()} == {os.getsid(0)}
    _, alive = psutil.wait_procs(found, timeout=20)
    assert not alive
