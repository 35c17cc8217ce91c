"""Environments that cannot be seeded, that cannot be replayed, that fail now and then, or that can be put back."""

from __future__ import annotations

import csv
import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from environments import PutsBack

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.envs.snapshots import SnapshotSpec, restore_snapshot, snapshot_spec, take_snapshot
from shmppo.envs.vector_env import SyncVectorEnv
from shmppo.errors import EnvError
from shmppo.runs.checkpoint import load_newest_checkpoint
from shmppo.runs.trainer import resume, train
from shmppo.sampling.worker_pool import WorkerPool

BASE = TrainConfig(
    env="environments:Counter-v0", num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=4 * 32 * 6, seq_len=8,
)  # fmt: skip


def configuration(env: str, run_dir: Path, **changes: Any) -> TrainConfig:
    return dataclasses.replace(BASE, env=f"environments:{env}", run_dir=str(run_dir), **changes)


def kill_at_round(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Kill a worker at the given command of a run."""
    original, rounds = WorkerPool._signal, 0

    def strike(pool: WorkerPool, workers: list[Any], command: Any) -> None:
        nonlocal rounds
        rounds += bool(workers)
        original(pool, workers, command)
        if rounds == at:
            rounds += 1
            os.kill(workers[-1].process.pid, signal.SIGKILL)

    monkeypatch.setattr(WorkerPool, "_signal", strike)


def test_an_environment_that_refuses_seeds_trains_and_is_not_exact(tmp_path: Path) -> None:
    summary = train(configuration("RefusesSeeds-v0", tmp_path / "run", stop_at_iteration=3))
    assert summary["iterations"] == 3
    assert summary["inexact_reasons"] == ["the environment raises on reset(seed=…), so its episodes begin at random"]
    again = resume(tmp_path / "run", stop_at_iteration=4)
    assert again["inexact_reasons"][0] == summary["inexact_reasons"][0]
    assert "environment 3: its episode could not be replayed and was restarted" in again["inexact_reasons"]


@pytest.mark.parametrize(("seeding", "expected"), [("episode", [3.0, 0.0]), ("once", [1.0, 2.0])])
def test_which_resets_are_seeded(seeding: Any, expected: list[float]) -> None:
    config = dataclasses.replace(BASE, env="environments:SeedCounter-v0", episode_seeding=seeding)
    batch = SyncVectorEnv(config, inspect_task(config), 0, 1)
    batch.reset_all(0)
    rewards, terminated, truncated = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    for _ in range(14):  # two episodes of 7 steps
        batch.step([0], rewards, terminated, truncated)
    assert batch.obs[0][0].tolist() == expected
    batch.close()


def test_seeded_once_is_a_function_of_the_seed_whatever_the_workers(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, env="CartPole-v1", episode_seeding="once")
    runs = [
        train(dataclasses.replace(config, workers=workers, run_dir=str(tmp_path / str(workers))))
        for workers in (0, 1, 3)
    ]
    assert len({run["weights_sha256"] for run in runs}) == 1
    assert all(run["exact"] for run in runs)
    usual = train(dataclasses.replace(config, episode_seeding="episode", run_dir=str(tmp_path / "usual")))
    assert usual["weights_sha256"] != runs[0]["weights_sha256"]


def test_seeded_once_is_not_exact_after_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kill_at_round(monkeypatch, 3)
    config = dataclasses.replace(BASE, env="CartPole-v1", episode_seeding="once", workers=2)
    summary = train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
    assert summary["worker_restarts"] == 1
    assert not summary["exact"]
    assert summary["iterations"] == 6


def skipping(env: str, fault: str, root: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """A run that skips bad episodes, with any workers and refused without skipping: its summary and last row."""
    with pytest.raises(EnvError, match=fault):
        train(configuration(env, root / "strict"))
    runs = [
        train(configuration(env, root / str(workers), skip_bad_episodes=True, workers=workers)) for workers in (0, 3)
    ]
    assert runs[0]["weights_sha256"] == runs[1]["weights_sha256"]
    with open(root / "0" / "metrics.csv") as file:
        return runs[0], list(csv.DictReader(file))[-1]


@pytest.mark.parametrize("how", ["raise", "nan", "reward"])
def test_bad_episodes_are_skipped_and_counted_whatever_the_workers(how: str, tmp_path: Path) -> None:
    summary, last = skipping(f"FailsSometimes-{how}-v0", r"exploded|not finite", tmp_path)
    assert int(last["failed_episodes"]) > 5
    assert float(last["return_mean_100"]) == 9.0, "only whole episodes are counted"
    assert summary["exact"]


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_an_episode_that_cannot_begin_takes_nothing_from_the_one_before(how: str, tmp_path: Path) -> None:
    fault = r"no such level|reset returned the observation .*nan.*, which is not finite"
    summary, last = skipping(f"FailsAtReset-{how}-v0", fault, tmp_path)
    steps = int(last["env_steps"]) // summary["num_envs"]
    assert (int(last["episodes"]), int(last["failed_episodes"])) == (steps // 9 * summary["num_envs"], 0)
    assert float(last["return_mean_100"]) == 9.0
    assert "no such level" in (tmp_path / "0" / "run.log").read_text() or how == "nan"


def test_a_step_without_an_outcome_has_no_advantage(tmp_path: Path) -> None:
    from conftest import sampled

    from shmppo.ppo.gae import generalized_advantages

    config = configuration("FailsSometimes-raise-v0", tmp_path, skip_bad_episodes=True, normalize_reward=False)
    arena, _, _ = sampled(config)
    read = arena.array
    bad = (read("terminated") | read("truncated")) & (read("ended_length") == 0)
    assert bad.sum() >= 2
    advantages = generalized_advantages(
        rewards=read("reward"), values=read("value"), bootstraps=read("bootstrap"), terminated=read("terminated"),
        truncated=read("truncated"), gamma=config.gamma, gae_lambda=config.gae_lambda,
    )  # fmt: skip
    assert np.abs(advantages[bad]).max() < 1e-6
    t, n = np.argwhere(bad & (np.arange(32)[:, None] > 0))[0]
    before = read("reward")[t - 1, n] + config.gamma * read("value")[t, n] - read("value")[t - 1, n]
    assert advantages[t - 1, n] == pytest.approx(before, abs=1e-5)


def test_an_environment_that_can_be_put_back_is_not_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    straight = train(configuration("PutsBack-v0", tmp_path / "straight"))
    train(configuration("PutsBack-v0", tmp_path / "stopped", stop_at_iteration=3, workers=2))
    state = load_newest_checkpoint(tmp_path / "stopped")
    assert len(state["actions"]["actions"]) == 0, "no actions are kept"
    assert state["carry"]["carry_snapshot"].shape == (4, 24), "two numbers, and the time limit's count"
    resumed = resume(tmp_path / "stopped", workers=1)
    assert resumed["exact"]
    assert resumed["weights_sha256"] == straight["weights_sha256"]
    kill_at_round(monkeypatch, 4)
    killed = train(configuration("PutsBack-v0", tmp_path / "killed", workers=2, learning="central"))
    assert killed["worker_restarts"] == 1
    assert killed["exact"]
    assert killed["weights_sha256"] == straight["weights_sha256"]


def test_a_snapshot_brings_back_the_time_limit_too() -> None:
    env, other = (gymnasium.make("environments:PutsBack-v0", disable_env_checker=True) for _ in range(2))
    spec = snapshot_spec(env)
    assert spec == SnapshotSpec((2,), "<f8", time_limits=1)
    env.reset(seed=3)
    for _ in range(48):
        env.step(1)
    kept = np.zeros(spec.bytes, np.uint8)
    take_snapshot(env, spec, kept)
    other.reset(seed=99)
    restore_snapshot(other, spec, kept)
    for _ in range(2):
        mine, theirs = env.step(0), other.step(0)
        assert mine[0].tolist() == theirs[0].tolist()
        assert mine[3] == theirs[3]
    assert mine[3], "the time limit of 50 steps"


class Twice(gymnasium.Wrapper):
    """Steps twice, and may count."""

    def __init__(self, env: gymnasium.Env, counts: bool = False) -> None:
        super().__init__(env)
        self.counts, self.count = counts, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.count += self.counts
        observation, reward, terminated, truncated, extra = self.env.step(action)
        if not (terminated or truncated):
            observation, reward, terminated, truncated, extra = self.env.step(action)
        return observation, reward, terminated, truncated, extra


def test_a_snapshot_brings_back_a_time_limit_that_counts_otherwise_and_no_other_wrapper() -> None:
    env, other = (Twice(gymnasium.make("environments:PutsBack-v0", disable_env_checker=True)) for _ in range(2))
    spec = snapshot_spec(env)
    assert spec is not None
    env.reset(seed=3)
    for _ in range(24):
        env.step(1)
    kept = np.zeros(spec.bytes, np.uint8)
    take_snapshot(env, spec, kept)
    other.reset(seed=99)
    restore_snapshot(other, spec, kept)
    assert (env.step(0)[3], other.step(0)[3]) == (True, True)
    assert snapshot_spec(Twice(gymnasium.make("environments:PutsBack-v0"), counts=True)) is None


def test_methods_of_the_same_names_that_do_something_else_are_not_used() -> None:
    class Forgets(PutsBack):
        def set_state(self, state: np.ndarray) -> None:
            pass

    class Needs(PutsBack):
        def get_state(self, which: str) -> np.ndarray:  # type: ignore[override]
            return np.zeros(1)

    class NearlyPutsBack(PutsBack):
        def set_state(self, state: np.ndarray) -> None:
            super().set_state(state)
            self.position += 1e-12

    for kind in (Forgets, Needs, NearlyPutsBack):
        assert snapshot_spec(kind()) is None
