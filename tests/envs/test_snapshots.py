"""Environments with snapshots: restored without a replay, and methods of the same names that are no snapshots."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from environments import PutsBack
from public_helpers import SIX_ITERATIONS, train_in

from shmppo.envs.snapshots import SnapshotSpec, restore_snapshot, snapshot_spec, take_snapshot
from shmppo.envs.wrappers import random_action
from shmppo.errors import EnvError
from shmppo.storage.checkpoint import load_selected_checkpoint

BASE = dataclasses.replace(SIX_ITERATIONS, env="environments:PutsBack-v0")


def spec_of(env: gymnasium.Env) -> SnapshotSpec | None:
    return snapshot_spec(env, lambda seen: random_action(env.action_space))


def test_an_environment_with_snapshots_is_not_replayed(tmp_path: Path) -> None:
    train_in(tmp_path / "stopped", BASE, stop_at_iteration=3, workers=2)
    state = load_selected_checkpoint(tmp_path / "stopped")
    assert len(state["actions"]["actions"]) == 0, "no actions are stored"
    assert state["carry"]["snapshot"].shape == (4, 24), "two numbers, and the time limit's count"


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


class ChangesShape(PutsBack):
    """The shape of its state changes, as the length of a pickled generator does."""

    def get_state(self) -> np.ndarray:
        return np.resize(super().get_state(), 2 + (self.draws > 0))


def test_a_state_whose_shape_changes_is_an_error_that_names_the_environment(tmp_path: Path) -> None:
    message = r"^environment 0: get_state raised .*it returned float64 \(3,\), but float64 \(2,\) at"
    with pytest.raises(EnvError, match=message):
        train_in(tmp_path / "run", BASE, env="test_snapshots:ChangesShape")
