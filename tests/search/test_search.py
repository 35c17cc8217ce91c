"""The command `search` with real training runs: continued trials, kills, Ctrl-C, two searches at once, and failures."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shmppo import TrainConfig
from shmppo.search.cores import Cores
from shmppo.search.trial_run import RunResult, TrialRun

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
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
    with open(directory / "trials.csv", newline="") as file:
        return list(csv.DictReader(file))


def runs_of(search_process: psutil.Process) -> list[psutil.Process]:
    """The training runs of a search."""
    with suppress(psutil.Error):
        return [child for child in search_process.children() if "shmppo.train" in " ".join(child.cmdline())]
    return []


def is_training(run: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return run.is_running() and run.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(autouse=True, scope="module")
def own_cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the files of taken cores apart from those of other searches of this user, which the tests would wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        yield


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


def test_a_continued_trial_has_the_weights_of_a_run_with_its_options(undisturbed: Path, tmp_path: Path) -> None:
    trials = table(undisturbed)
    assert sorted(trial["state"] for trial in trials) == ["finished", "stopped", "stopped"]
    (best,) = (trial for trial in trials if trial["state"] == "finished")
    assert sorted(int(trial["env_steps"]) for trial in trials) == [384, 384, 1024]
    assert (undisturbed / "study.db").is_file()
    train = [sys.executable, "-m", "shmppo.train", "--config", str(undisturbed / "best.json"), "--workers", "2"]
    subprocess.run([*train, "--run-dir", str(tmp_path / "run"), "--quiet"], check=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights_sha256"] == best["weights_sha256"]
    assert summary["exact"]


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


@pytest.mark.usefixtures("no_process_left")
def test_two_searches_share_a_study_and_the_cores(tmp_path: Path) -> None:
    flags = ("--trials", "6")
    searches = [psutil.Popen(command(tmp_path / "search", *flags), stdout=subprocess.DEVNULL) for _ in range(2)]
    trained: list[set[str]] = [set(), set()]
    while any(process.poll() is None for process in searches):
        cores: dict[psutil.Process, list[int]] = {}
        for process, seen in zip(searches, trained, strict=True):
            for run in runs_of(process):
                with suppress(psutil.Error):
                    cores[run] = run.cpu_affinity() or []
                    seen |= {path for path in run.cmdline() if path.endswith("seed-1")}
        # A run that has ended meanwhile has given its cores back.
        used = [core for run, own in cores.items() if is_training(run) for core in own]
        assert len(used) == len(set(used))
        assert set(used) <= set(Cores().usable)
        time.sleep(0.05)
    assert [process.returncode for process in searches].count(0) >= 1
    assert not trained[0] & trained[1]
    assert search(tmp_path / "search", *flags).returncode == 0
    trials = table(tmp_path / "search")
    assert len(trials) == 6
    assert {trial["state"] for trial in trials} == {"finished", "stopped"}


def test_a_run_that_is_killed_before_its_summary_repeats_iterations(tmp_path: Path) -> None:
    config = TrainConfig(
        num_envs=4, rollout_steps=32, minibatches=2, hidden_size=8, encoder_sizes=(8,), total_steps=1024
    )

    def train() -> RunResult:
        run = TrialRun(0, config, 3, tmp_path / "run", objective="last")
        assert run.result() is None
        run.start(Cores().usable[:1])
        while not run.ended():
            time.sleep(0.05)
        result = run.result()
        assert result is not None
        return result

    first = train()
    assert not first.failure
    (tmp_path / "run" / "summary.json").unlink()
    assert train() == first


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
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, 1e15 if self.mode == "huge" and self.steps > 200 else reward, terminated, truncated, info

def make(mode=""):
    return Failing(mode)

def space(trial):
    modes = ["", "exit", "kill", "raise"]
    return {"env_kwargs": {"mode": modes[trial.number]}}
"""


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


def test_bad_input_is_one_sentence(undisturbed: Path, tmp_path: Path) -> None:
    unknown, contradictory, other = (tmp_path / f"{name}.json" for name in ("unknown", "contradictory", "other"))
    unknown.write_text('{"learning_speed": {"low": 1, "high": 2}}')
    contradictory.write_text('{"gamma": {"low": 0.99, "high": 0.9}}')
    other.write_text('{"gamma": {"low": 0.9, "high": 0.99}}')
    new = tmp_path / "new"
    for directory, flags, job, message in (
        (new, ("--space", str(unknown)), (), "there is no field learning_speed"),
        (new, ("--space", str(contradictory)), (), "low must be smaller"),
        (new, ("--storage", "postgresql://nobody@localhost:1/none"), (), "--storage postgresql://"),
        (new, (), ("--workers", "2"), "--workers after -- belongs to the search; leave it out"),
        (new, ("--trials", "0"), (), "--trials is 0; it must be at least 1"),
        (undisturbed, ("--space", str(other)), (), "was begun with another space"),
        (undisturbed, (), ("--gamma", "0.5"), "was begun with another value of --gamma"),
        (undisturbed, ("--study", "other"), ("--gamma", "0.5"), "has a run of another study with another --"),
        (new, (), ("--env", "NoSuchEnv-v0"), "NoSuchEnv"),
        (tmp_path / "other.json", (), (), "cannot be written"),
    ):
        done = search(directory, *flags, job=job)
        lines = done.stderr.splitlines()
        assert (done.returncode, len(lines)) == (2, 1), done.stderr
        assert lines[0].startswith("error: ")
        assert message in lines[0]
    assert not (new / "trials").exists()
