"""Step times (--step-times): statistics, the slowest environment, and that they change no result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import published

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.loggers.step_times import StepTimes
from shmppo.loggers.summary import summary_text
from shmppo.plotting.curves import read_columns
from shmppo.runs.trainer import train

SLOW = TrainConfig(
    env="environments:SlowEnvironment2-v0", num_envs=4, rollout_steps=64, minibatches=2, hidden_size=8, seq_len=8,
    workers=2, quiet=True, stop_at_iteration=3,
)  # fmt: skip


def test_quantiles_are_those_of_the_added_times() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(-7, 1, (4000, 2)) * [1, 10]
    times = StepTimes(2)
    for part in np.split(seconds, 4):
        times.add(part.astype(np.float32))
    for q in (0.5, 0.9, 0.99):
        np.testing.assert_allclose(times.quantile(q), np.quantile(seconds, q, axis=0), rtol=0.07)
    first, second = times.rows([0, 1])
    assert first["steps"] == 4000
    assert second["mean_seconds"] == pytest.approx(seconds[:, 1].mean(), rel=1e-5)
    assert times.summary([0, 1])["slowest_environment"] == 1


def test_the_slowest_environment_and_its_worker_are_named(tmp_path: Path) -> None:
    config = dataclasses.replace(SLOW, step_times=True, run_dir=str(tmp_path / "timed"))
    timed = train(config)
    found = timed["step_times"]
    assert (found["slowest_environment"], found["slowest_worker"]) == (2, 1)
    assert found["slowest_q50_seconds"] > 0.0047  # its sleep, less the width of a histogram bin
    assert found["mean_seconds"] < found["slowest_mean_seconds"]
    assert "environment 2 (worker 1)" in summary_text(config, timed, tmp_path)
    rows = read_columns(tmp_path / "timed" / "metrics.csv")
    assert np.median(rows["slowest_worker"]) == 1
    assert np.median(rows["straggler_wait"]) > 0
    assert (rows["collect_seconds"] > 64 * 0.005).all()
    for workers in (0, 3):
        plain = train(dataclasses.replace(SLOW, workers=workers, run_dir=str(tmp_path / f"plain-{workers}")))
        assert plain["weights_sha256"] == timed["weights_sha256"]
        assert not (tmp_path / f"plain-{workers}" / "step_times.csv").exists()


def test_without_the_flag_there_is_no_memory_for_step_times() -> None:
    task = inspect_task(SLOW)
    assert published(SLOW, task)[0].timings.step_seconds.shape == (0, 4)
    timed = dataclasses.replace(SLOW, step_times=True)
    assert published(timed, task)[0].timings.step_seconds.shape == (64, 4)
