"""Environments with snapshots: restored without a replay, and methods of the same names that are no snapshots."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from environments import PutsBack
from gymnasium import spaces
from helpers import Saboteur

from shmppo.config.train_config import TrainConfig
from shmppo.envs.snapshots import SnapshotSpec, restore_snapshot, snapshot_spec, take_snapshot
from shmppo.envs.wrappers import random_action
from shmppo.errors import ShmppoError
from shmppo.runs.trainer import resume, train
from shmppo.storage.checkpoint import load_selected_checkpoint

BASE = TrainConfig(
    env="environments:PutsBack-v0", num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=4 * 32 * 6, seq_len=8,
)  # fmt: skip


def spec_of(env: gymnasium.Env) -> SnapshotSpec | None:
    return snapshot_spec(env, lambda seen: random_action(env.action_space))


def test_an_environment_with_snapshots_is_not_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    straight = train(dataclasses.replace(BASE, run_dir=str(tmp_path / "straight")))
    train(dataclasses.replace(BASE, stop_at_iteration=3, workers=2, run_dir=str(tmp_path / "stopped")))
    state = load_selected_checkpoint(tmp_path / "stopped")
    assert len(state["actions"]["actions"]) == 0, "no actions are stored"
    assert state["carry"]["snapshot"].shape == (4, 24), "two numbers, and the time limit's count"
    resumed = resume(tmp_path / "stopped", workers=1)
    assert resumed["exact"]
    assert resumed["weights_sha256"] == straight["weights_sha256"]
    Saboteur(monkeypatch, at_round=4, number=signal.SIGKILL, delay=0.0)
    killed = train(dataclasses.replace(BASE, workers=2, learning="central", run_dir=str(tmp_path / "killed")))
    assert killed["worker_restarts"] == 1
    assert killed["exact"]
    assert killed["weights_sha256"] == straight["weights_sha256"]


def test_a_snapshot_restores_the_time_limit_too() -> None:
    env, other = (gymnasium.make("environments:PutsBack-v0", disable_env_checker=True) for _ in range(2))
    spec = spec_of(env)
    assert spec == SnapshotSpec((2,), "<f8", time_limits=1)
    env.reset(seed=3)
    for _ in range(48):
        env.step(1)
    snapshot = np.zeros(spec.bytes, np.uint8)
    take_snapshot(env, spec, snapshot)
    other.reset(seed=99)
    restore_snapshot(other, spec, snapshot)
    for _ in range(2):
        expected, restored = env.step(0), other.step(0)
        assert restored[0].tolist() == expected[0].tolist()
        assert restored[3] == expected[3]
    assert restored[3], "the time limit of 50 steps"


class Twice(gymnasium.Wrapper):
    """Steps twice per action. `counts`: it also counts its steps, which no snapshot contains."""

    def __init__(self, env: gymnasium.Env, counts: bool = False) -> None:
        super().__init__(env)
        self.counts, self.count = counts, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.count += self.counts
        observation, reward, terminated, truncated, extra = self.env.step(action)
        if not (terminated or truncated):
            observation, reward, terminated, truncated, extra = self.env.step(action)
        return observation, reward, terminated, truncated, extra


def test_a_snapshot_restores_a_time_limit_below_another_wrapper_but_no_other_state() -> None:
    env, other = (Twice(gymnasium.make("environments:PutsBack-v0", disable_env_checker=True)) for _ in range(2))
    spec = spec_of(env)
    assert spec is not None
    env.reset(seed=3)
    for _ in range(24):
        env.step(1)
    snapshot = np.zeros(spec.bytes, np.uint8)
    take_snapshot(env, spec, snapshot)
    other.reset(seed=99)
    restore_snapshot(other, spec, snapshot)
    assert (env.step(0)[3], other.step(0)[3]) == (True, True)
    assert spec_of(Twice(gymnasium.make("environments:PutsBack-v0"), counts=True)) is None


def test_methods_of_the_same_names_that_restore_nothing_are_not_used() -> None:
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
        assert spec_of(kind()) is None


def test_an_environment_that_changes_its_action_in_place_has_snapshots() -> None:
    class Doubles(PutsBack):
        action_space = spaces.Box(-1, 1, (1,))  # type: ignore[assignment]

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
            action *= 2
            return super().step(action.item())

    assert spec_of(Doubles()) == SnapshotSpec((2,), "<f8")


def test_a_state_whose_shape_changes_is_an_error_that_names_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The length of a pickled generator changes, for example."""
    get_state = PutsBack.get_state
    monkeypatch.setattr(PutsBack, "get_state", lambda env: np.resize(get_state(env), 2 + (env.draws > 0)))
    with pytest.raises(
        ShmppoError, match=r"^environment 0: get_state failed: .*it returned float64 \(3,\), but float64 \(2,\) at"
    ):
        train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")))
