"""Coefficients that adapt to the KL divergence of the last update."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from public_helpers import csv_rows

from shmppo.config.train_config import TrainConfig
from shmppo.runs.launch import train

BASE = TrainConfig(
    env="HalfCheetah-v5", num_envs=6, rollout_steps=24, seq_len=8, minibatches=2, epochs=2, hidden_size=16,
    encoder_sizes=(16,), grad_shards=3, workers=0, quiet=True, total_steps=6 * 24 * 8,
)  # fmt: skip


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
