"""Variants of the algorithm: workers, learning mode, and stopping do not change the weights; schedules adapt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from public_helpers import csv_rows

from shmppo.config.train_config import TrainConfig
from shmppo.runs.trainer import train

BASE = TrainConfig(
    env="HalfCheetah-v5", num_envs=6, rollout_steps=24, seq_len=8, minibatches=2, epochs=2, hidden_size=16,
    encoder_sizes=(16,), grad_shards=3, workers=0, quiet=True, total_steps=6 * 24 * 8,
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "penalty": {"objective": "penalty", "optimizer": "adamw", "weight_decay": 0.01, "entropy_coef": 0.01},
    "kl-adaptive": {"lr_schedule": "kl-adaptive", "warmup_steps": 500, "optimizer": "sgd", "log_std_min": -0.01},
    "per-dimension": {"ratio": "per-dimension", "dual_clip": 3.0, "clip_reward": 1.0, "optimizer": "sgd"},
    "state-std": {"std": "state", "squash_actions": True, "objective": "penalty", "entropy_coef": 0.01},
    "beta": {"distribution": "beta", "ratio": "per-dimension", "entropy_coef": 0.01, "kl_profile_every": 2},
    "beta-penalty": {"distribution": "beta", "objective": "penalty", "core": "gru", "prev_action": True},
    "bf16": {"autocast": "bf16", "entropy_coef": 0.01, "anneal_entropy": True, "truncation_is_termination": True},
}


def column(run_dir: Path, name: str) -> list[float]:
    return [float(row[name]) for row in csv_rows(run_dir / "metrics.csv")]


def test_penalty_and_learning_rate_adapt_to_the_kl_of_the_last_epoch(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, objective="penalty", lr_schedule="kl-adaptive", run_dir=str(tmp_path / "run"))
    train(config)
    kl, beta, rate = (
        column(tmp_path / "run", name) for name in ("approx_kl_last_epoch", "penalty_coef", "learning_rate")
    )
    assert (beta[0], rate[0]) == (1.0, 1e-3)
    for i in range(7):
        factor = 0.5 if kl[i] < 0.01 / 1.5 else 2.0 if kl[i] > 0.015 else 1.0
        assert beta[i + 1] == pytest.approx(beta[i] * factor)
        factor = 1.5 if kl[i] < 0.005 else 1 / 1.5 if kl[i] > 0.02 else 1.0
        assert rate[i + 1] == pytest.approx(min(rate[i] * factor, 1e-2))
    assert len(set(beta)) > 2, "nothing adapted"
