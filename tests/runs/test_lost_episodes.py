"""Episodes that cannot be replayed when a run is resumed, because they are too long: what takes their place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from public_helpers import csv_rows

from shmppo import resume, train
from shmppo.config.train_config import TrainConfig
from shmppo.storage.checkpoint import load_selected_checkpoint

SMALL = TrainConfig(
    num_envs=4, rollout_steps=5, seq_len=5, minibatches=2, hidden_size=8, workers=0, quiet=True, total_steps=4 * 5 * 4
)


def last_row(run_dir: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, float]:
    """Stop and resume a run of 4 iterations, lose the episodes in progress, and return its last row of metrics.csv."""
    monkeypatch.setattr("shmppo.runs.train_state.REPLAY_LIMIT", 1)
    assert train(dataclasses.replace(SMALL, run_dir=str(run_dir), **changes))["exact"]
    assert load_selected_checkpoint(run_dir)["actions"]["actions"].numel() == 0
    reasons = resume(run_dir)["inexact_reasons"]
    assert reasons[0] == "environment 0: its episode could not be replayed and was restarted"
    return {name: float(text) for name, text in csv_rows(run_dir / "metrics.csv")[-1].items() if name != "weights_hash"}


def test_a_lost_episode_does_not_count_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each episode of `Counter` has 7 steps with a reward of 1."""
    row = last_row(tmp_path / "run", monkeypatch, env="environments:Counter", stop_at_iteration=1)
    assert (row["return_mean_100"], row["length_mean_100"]) == (7, 7)


def test_the_info_of_a_lost_episode_does_not_count_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("reward/distance:sum", "reward/control:sum")
    row = last_row(tmp_path / "run", monkeypatch, env="environments:Reach", info_keys=keys, stop_at_iteration=2)
    assert row["info/reward/distance"] + row["info/reward/control"] == pytest.approx(row["return_mean_100"])


def test_an_episode_that_replaces_a_lost_one_can_be_restored_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SMALL, env="schedules:Leveled", env_schedule="schedules:levels", rollout_steps=4)
    with monkeypatch.context() as patch:
        patch.setattr("shmppo.runs.train_state.REPLAY_LIMIT", 3)
        train(dataclasses.replace(config, seq_len=4, stop_at_iteration=1, run_dir=str(tmp_path / "run")))
    assert not resume(tmp_path / "run", stop_at_iteration=2)["exact"]
    assert load_selected_checkpoint(tmp_path / "run")["actions"]["numbers"].tolist() == [1] * 4
    resume(tmp_path / "run", stop_at_iteration=3)
    # Episodes of 7 steps that began in iteration 2 end in iteration 3. The next ones have one step.
    actions = load_selected_checkpoint(tmp_path / "run")["actions"]
    assert (actions["numbers"].tolist(), actions["lengths"].tolist()) == ([2] * 4, [1] * 4)
