"""Stragglers are named: by the table of every run, by --step-times and by the benchmark, at no cost to the bits."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import published

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.loggers.step_times import StepTimes, waiting_share
from shmppo.loggers.summary import summary_text
from shmppo.plotting.curves import read_columns
from shmppo.runs.trainer import train
from shmppo.testing import Latency

SLOW = TrainConfig(
    env="environments:SlowEnvironment2-v0", num_envs=4, rollout_steps=16, minibatches=2, hidden_size=8, seq_len=8,
    workers=2, quiet=True, stop_at_iteration=3,
)  # fmt: skip


def test_the_share_that_waits() -> None:
    assert waiting_share(np.array([1.0, 2.0, 4.0, 1.0])) == pytest.approx(0.5)
    assert waiting_share(np.array([3.0])) == 0


def test_quantiles_are_those_of_the_times_added() -> None:
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


def test_the_slow_environment_is_named_and_its_worker_waited_for(tmp_path: Path) -> None:
    config = dataclasses.replace(SLOW, step_times=True, run_dir=str(tmp_path / "timed"))
    timed = train(config)
    found = timed["step_times"]
    assert (found["slowest_environment"], found["slowest_worker"]) == (2, 1)
    assert found["slowest_q50_seconds"] > 0.0047  # at least its sleep, to a bin's width; more on a busy machine
    assert found["mean_seconds"] < found["slowest_mean_seconds"]
    assert "environment 2 (worker 1)" in summary_text(config, timed, tmp_path)
    rows = read_columns(tmp_path / "timed" / "metrics.csv")
    assert np.median(rows["slowest_worker"]) == 1
    assert np.median(rows["straggler_wait"]) > 0
    assert (rows["collect_seconds"] > 16 * 0.005).all()
    for workers in (0, 3):
        plain = train(dataclasses.replace(SLOW, workers=workers, run_dir=str(tmp_path / f"plain-{workers}")))
        assert plain["weights_sha256"] == timed["weights_sha256"]
        assert not (tmp_path / f"plain-{workers}" / "step_times.csv").exists()


def test_without_the_switch_there_is_no_memory_for_step_times() -> None:
    task = inspect_task(SLOW)
    assert published(SLOW, task)[0].array("step_seconds").shape == (0, 4)
    timed = dataclasses.replace(SLOW, step_times=True)
    assert published(timed, task)[0].array("step_seconds").shape == (16, 4)


@pytest.mark.parametrize("tail", ["none", "exponential", "pareto"])
def test_latencies_have_their_mean_and_follow_from_the_seed(tail: str) -> None:
    env = Latency(mean=0.01, tail=tail)  # type: ignore[arg-type]
    env.reset(seed=5)
    drawn = np.array([env.seconds() for _ in range(40_000)])
    assert np.median(drawn) <= 0.01
    assert drawn[drawn < 10].mean() == pytest.approx(0.01, rel=0.1)
    env.reset(seed=5)
    assert [env.seconds() for _ in range(3)] == drawn[:3].tolist()


@pytest.mark.long
def test_the_benchmark_names_it(run_command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    flags = ("--env", "shmppo.testing:Latency", "--env-kwargs", "mean=0.0005", "tail=exponential", "--num-envs", 4)
    small = ("--rollout-steps", 16, "--minibatches", 2, "--hidden-size", 8, "--workers", 2, "--iterations", 6)
    done = run_command("shmppo.bench", "stragglers", *flags, *small, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["straggler_wait"] < 1
    assert [row["environments"] for row in result["workers"]] == [2, 2]
    means = [row["mean_seconds"] for row in result["environments"]]
    assert means == sorted(means, reverse=True)
    assert min(means) > 0.0004
    text = run_command("shmppo.bench", "stragglers", *flags, *small)
    assert "waits for the slowest" in text.stdout
    refused = run_command("shmppo.bench", "stragglers", "--iterations", 3)
    assert refused.returncode == 2
    assert "must be above 3" in refused.stderr
