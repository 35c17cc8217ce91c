"""Workers that fail while they start: they are replaced like workers that fail later, and change no bit."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
from public_helpers import raises, slow_after, train_in

from shmppo import ConfigError, TrainConfig, resume, train
from shmppo.lockstep.worker_processes import WORKER_NAME

BASE = TrainConfig(
    env="faulty_environments:FailsAtStart", num_envs=4, rollout_steps=16, minibatches=2, epochs=1, hidden_size=8,
    encoder_sizes=(8,), workers=2, quiet=True, total_steps=4 * 16 * 4, seq_len=8,
)  # fmt: skip


def tokens(root: Path, count: int) -> str:
    """Create a directory with `count` files, of which each lets one start fail."""
    (root / "tokens").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (root / "tokens" / str(i)).touch()
    return str(root / "tokens")


def configuration(how: str, count: int, root: Path, **changes: Any) -> TrainConfig:
    kwargs = {"how": how, "tokens": tokens(root, count)}
    return dataclasses.replace(BASE, env_kwargs=kwargs, run_dir=str(root / "run"), **changes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    summary = train(configuration("exit", 0, tmp_path_factory.mktemp("undisturbed"), workers=0))
    return str(summary["weights_sha256"])


@pytest.mark.parametrize("how", slow_after(1, ["exit", "stop"], "20 s"))
def test_a_worker_that_fails_while_it_starts_is_replaced(
    how: str, undisturbed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    count, timeout = (1, 5.0) if how == "stop" else (2, 60.0)
    monkeypatch.setattr("shmppo.lockstep.worker_processes.MIN_START_SECONDS", timeout)
    config = configuration(how, count, tmp_path, worker_timeout=timeout, stop_at_iteration=2)
    summary = train(config)
    assert (summary["worker_restarts"], summary["exact"]) == (count, True)
    tokens(tmp_path, count)
    summary = resume(tmp_path / "run")
    assert (summary["worker_restarts"], summary["exact"]) == (count, True)
    assert summary["weights_sha256"] == undisturbed


@pytest.mark.parametrize("strikes", slow_after(1, [1, 2], "3 s"))
def test_a_worker_that_is_killed_before_it_runs_is_replaced(
    strikes: int, undisturbed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = BaseProcess.start
    killed: list[int | None] = []

    def start_and_kill(process: BaseProcess) -> None:
        start(process)
        if process.name.startswith(WORKER_NAME) and len(killed) < strikes:
            process.kill()
            killed.append(process.pid)

    monkeypatch.setattr(BaseProcess, "start", start_and_kill)
    summary = train(configuration("exit", 0, tmp_path))
    assert (summary["worker_restarts"], summary["exact"]) == (strikes, True)
    assert summary["weights_sha256"] == undisturbed


REASONS = {
    "exit": r"^worker \d died while it started: exit code 3$",
    "stop": r"^worker \d \(pid \d+\) has made no progress for 1 s; ",
}


@pytest.mark.parametrize("how", slow_after(1, REASONS, "8 s"))
def test_a_worker_that_fails_at_every_start_ends_the_run_with_the_reason(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shmppo.lockstep.worker_processes.MIN_START_SECONDS", 1.0)
    monkeypatch.setattr("shmppo.lockstep.worker_processes.MAX_RESTARTS", 1)
    config = configuration(how, 50, tmp_path, worker_timeout=1.0 if how == "stop" else 60.0)
    with raises("WorkerError", REASONS[how]):
        train(config)
    started = 50 - len(os.listdir(tmp_path / "tokens"))
    assert 2 <= started <= 4, "each of two workers starts twice at most"


@pytest.mark.parametrize("skips", slow_after(1, [False, True], "8 s"))
def test_an_environment_that_raises_in_its_first_episode_ends_the_run_at_once(skips: bool, tmp_path: Path) -> None:
    """With --skip-bad-episodes it tries other episodes, and then the worker is replaced."""
    config = configuration("raise", 400 if skips else 2, tmp_path, skip_bad_episodes=skips)
    reason = r"^environment \d: reset\(seed=\d+\) of episode \d+ raised ValueError\('no license'\) at"
    with raises("EnvError", reason):
        train(config)
    log = (tmp_path / "run/run.log").read_text()
    assert ("starting another worker" in log) == skips
    assert "the run could not start: EnvError(" in log
    assert not (tmp_path / "run/summary.json").exists()
    again = train(configuration("raise", 0, tmp_path, workers=0))
    assert again["error"] is None, "the directory can be used again"


@pytest.mark.parametrize("killed", slow_after(1, [False, True], "8 s"))
def test_an_environment_in_a_worker_may_start_a_process_which_ends_with_it(killed: bool, tmp_path: Path) -> None:
    """A worker that does not stop is killed, so it does not close its environments."""
    config = dataclasses.replace(BASE, env="environments:StartsProcess", num_envs=2, stop_at_iteration=1)
    found: list[psutil.Process] = []

    def callback(row: dict[str, float]) -> None:
        found.extend(p for p in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(p.cmdline()))
        for process in found if killed else ():
            process.parent().suspend()  # type: ignore[union-attr]

    train_in(tmp_path / "run", config, callback=callback)
    assert len(found) == 2
    _, alive = psutil.wait_procs(found, timeout=20)
    assert not alive


def test_a_process_of_an_environment_ends_with_a_worker_that_raises(tmp_path: Path) -> None:
    """Otherwise `train | tee` would wait for it."""
    seconds = str(10**6 + os.getpid())
    with raises("EnvError", "the simulation exploded"):
        train_in(tmp_path / "run", BASE, env="faulty_environments:FaultyWithProcess", env_kwargs={"seconds": seconds})
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]


def test_a_process_that_may_not_start_workers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with pytest.raises(ConfigError, match=r"such as one of multiprocessing\.Pool, cannot start"):
        train_in(tmp_path / "run", BASE, env="CartPole-v1", env_kwargs={})


@pytest.mark.long
def test_environments_that_are_slow_to_make_are_no_stalled_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of them take 6 s to make, and as long to reset; 5 s without progress are a stall."""
    monkeypatch.setattr("shmppo.lockstep.worker_processes.MIN_START_SECONDS", 5.0)
    config = TrainConfig(
        env="environments:SlowToMake", env_kwargs={"seconds": 0.8}, num_envs=8, rollout_steps=6, minibatches=1,
        total_steps=48, workers=1, quiet=True, hidden_size=8, check_determinism=0, worker_timeout=5.0,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert train(config)["worker_restarts"] == 0
