"""Behavior cloning in whole runs: it learns, no disturbance changes a bit, and PPO continues from the clone."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from helpers import clone_of_recording
from public_helpers import csv_rows

from shmppo.config.flags import parse_start
from shmppo.config.train_config import TrainConfig
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint import BEST

TRAINED = Path(__file__).parents[2] / "examples" / "trained"
BASE = TrainConfig(
    env="CartPole-v1", num_envs=6, rollout_steps=24, seq_len=8, minibatches=2, epochs=2, hidden_size=8,
    encoder_sizes=(8,), grad_shards=2, workers=0, quiet=True, total_steps=6 * 24 * 6,
)  # fmt: skip


def test_other_demonstrations_make_a_resumed_run_inexact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(clone_of_recording(BASE, tmp_path / "a.npz"), demonstrations="a.npz", run_dir="run")
    assert train(dataclasses.replace(config, stop_at_iteration=2))["exact"]
    with np.load("a.npz") as file:
        arrays = dict(file)
    arrays["obs"][0] += 1
    np.savez("a.npz", **arrays)
    monkeypatch.chdir(os.sep)
    summary = resume(tmp_path / "run")
    (reason,) = summary["inexact_reasons"]
    assert reason == "an episode could not be continued, because --demonstrations has other content"
    assert summary["best_checkpoint"] is None, "the returns of the demonstrations say nothing about the policy"


@pytest.mark.long
def test_twenty_episodes_are_enough_to_clone_a_policy_and_to_continue_with_ppo(tmp_path: Path) -> None:
    file, clone = tmp_path / "a.npz", tmp_path / "clone"
    evaluate(TRAINED / "cartpole", episodes=20, record=file)
    config = TrainConfig(
        env="CartPole-v1", objective="clone", demonstrations=str(file), total_steps=40_960, seed=3, workers=0,
        eval_every=20, quiet=True, run_dir=str(clone),
    )  # fmt: skip
    summary = train(config)
    assert (summary["exact"], summary["best_by"], summary["best_checkpoint"]) == (True, "eval/return", BEST)
    file.unlink()  # only cloning needs it
    returns = evaluate(clone, episodes=20, seed=7).returns
    assert sum(returns) / 20 >= 400
    rows = csv_rows(clone / "metrics.csv")
    assert float(rows[-1]["policy_loss"]) < 0.5 * float(rows[0]["policy_loss"])
    assert {float(row["return_mean_100"]) for row in rows[5:]} == {500.0}
    assert 0 <= float(rows[-1]["approx_kl"]) < 0.1
    words = ["--init-from", str(clone), "--total-steps", "2048", "--workers", "0", "--run-dir", str(tmp_path / "ppo")]
    continued, _ = parse_start([*words, "--quiet"])
    assert (continued.objective, continued.demonstrations, continued.hidden_indices) == ("clip", None, ())
    assert train(continued)["return_mean_100"] != 500.0
