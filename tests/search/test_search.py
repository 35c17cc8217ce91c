"""The command `search` with real training runs: continued trials, kills, Ctrl-C, and failures."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from public_helpers import csv_rows

pytestmark = pytest.mark.timeout(600)
JOB = "--num-envs 4 --rollout-steps 32 --minibatches 2 --hidden-size 8 --encoder-sizes 8 --total-steps 1024"
SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "epochs": {"choices": [1, 2]}}


def command(directory: Path, *flags: str, job: tuple[str, ...] = ()) -> list[str]:
    """A search with brackets of 3 trials and 2 rungs."""
    space = directory.parent / "space.json"
    if not space.exists():
        space.write_text(json.dumps(SPACE))
    own = ["--rungs", "2", "--eta", "3", "--trials", "3", "--space", str(space), "--search-dir", str(directory)]
    return [sys.executable, "-m", "shmppo.search", *own, *flags, "--", *JOB.split(), *job]


def search(directory: Path, *flags: str, job: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(directory, *flags, job=job), capture_output=True, text=True, check=False)


def table(directory: Path) -> list[dict[str, str]]:
    return csv_rows(directory / "trials.csv")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed") / "search"
    done = search(directory)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not psutil.wait_procs(processes_of(tmp_path), timeout=30)[1]


def processes_of(directory: Path) -> list[psutil.Process]:
    """The processes of searches below a directory, also of those whose parent was killed."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(directory) in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.long
def test_a_continued_trial_has_the_weights_of_a_run_with_its_options(undisturbed: Path, tmp_path: Path) -> None:
    trials = table(undisturbed)
    assert sorted(trial["state"] for trial in trials) == ["finished", "stopped", "stopped"]
    (best,) = (trial for trial in trials if trial["state"] == "finished")
    assert sorted(int(trial["env_steps"]) for trial in trials) == [384, 384, 1024]
    assert (undisturbed / "study.log").is_file()
    train = [sys.executable, "-m", "shmppo.train", "--config", str(undisturbed / "best.json"), "--workers", "2"]
    subprocess.run([*train, "--run-dir", str(tmp_path / "run"), "--quiet"], check=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights_sha256"].startswith(best["weights_hashes"])
    assert summary["exact"] is not False  # None: the run may end before the check of the environment


@pytest.mark.slow(reason="15 s on two cores")
@pytest.mark.usefixtures("no_process_left")
def test_the_best_trial_is_compared_with_the_unchanged_options_on_new_seeds(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "search")
    done = search(tmp_path / "search", "--confirm", "2")  # a finished search
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("with new seeds")]
    (best,) = (trial["trial"] for trial in table(undisturbed) if trial["state"] == "finished")
    for name, line in zip((f"trial-{int(best):04d}", "unchanged"), lines, strict=True):
        values = []
        for seed in (2, 3):
            run_dir = tmp_path / "search" / "confirmed" / name / f"seed-{seed}"
            config = json.loads((run_dir / "config.json").read_text())["config"]
            assert config["seed"] == seed
            assert (config["learning_rate"] == 1e-3) == (name == "unchanged")
            values.append(float(csv_rows(run_dir / "metrics.csv")[-1]["return_mean_100"]))
        assert line == f"with new seeds  {name}: {np.mean(values):.2f} ({values[0]:.2f}, {values[1]:.2f})"
    again = search(tmp_path / "search", "--confirm", "2")
    assert [line for line in again.stdout.splitlines() if line.startswith("with new seeds")] == lines


@pytest.mark.slow(reason="about 2 min")
@pytest.mark.usefixtures("no_process_left")
def test_a_search_that_is_killed_five_times_has_the_same_trials(undisturbed: Path, tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(5):
        process = subprocess.Popen(command(tmp_path / "search", "--jobs", "1"), stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(2, 12))
        process.kill()
        process.wait()
    done = search(tmp_path / "search", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert table(tmp_path / "search") == table(undisturbed)


@pytest.mark.slow(reason="about 1 min")
@pytest.mark.usefixtures("no_process_left")
def test_ctrl_c_pauses_a_search(undisturbed: Path, tmp_path: Path) -> None:
    process = psutil.Popen(command(tmp_path / "search"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "search" / "trials").glob("*/*/metrics.csv")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted; continue the search with the same command"
    assert "Traceback" not in stderr
    assert search(tmp_path / "search").returncode == 0
    assert table(tmp_path / "search") == table(undisturbed)


FAILING = """
import os, gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Failing(CartPoleEnv):
    def __init__(self, mode="", **kwargs):
        super().__init__(**kwargs)
        self.mode, self.steps = mode, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 20 and self.mode == "exit":
            os._exit(3)
        if self.steps == 20 and self.mode == "kill":
            os.kill(os.getpid(), 9)
        if self.steps == 20 and self.mode == "raise":
            raise RuntimeError("no luck")
        return super().step(action)

def make(mode=""):
    return Failing(mode)

def space(trial):
    modes = ["", "exit", "kill", "raise"]
    return {"env_kwargs": {"mode": modes[trial.number]}}
"""


@pytest.mark.slow(reason="about 40 s")
@pytest.mark.usefixtures("no_process_left")
def test_trials_that_fail_are_recorded_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    flags = ("--space", "failing:space", "--trials", "4", "--rungs", "1")
    done = search(tmp_path / "search", *flags, job=("--env", "failing:make", "--check-determinism", "0"))
    assert done.returncode == 0, done.stderr
    reasons = {int(trial["trial"]): trial["reason"] for trial in table(tmp_path / "search")}
    assert reasons[0] == ""
    assert "exit code 3" in reasons[1]  # of the run, or of its worker if another core was free
    assert "SIGKILL" in reasons[2] or "signal 9" in reasons[2]
    assert "step raised RuntimeError('no luck')" in reasons[3]
    assert "1 finished, 3 failed" in done.stdout
