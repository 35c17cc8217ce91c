"""Rollouts that end early (--preempt-fraction): only the steps that exist are learned from and counted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import summary_of
from public_helpers import csv_rows, train_in
from rank_processes import directories, finish, start

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.preemption.feature import Preemption
from shmppo.runs.launch import resume

SHORT = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=16, seq_len=8, minibatches=2, epochs=2, hidden_size=8, grad_shards=1,
    encoder_sizes=(8,), lr_schedule="constant", workers=0, quiet=True, stop_at_iteration=4,
)  # fmt: skip


@pytest.mark.parametrize("over", ["minibatch", "global"])
def test_a_rollout_that_ends_at_half_its_length_is_one_of_half_the_length(
    over: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Updates from the first 16 of 32 steps give the same weights as rollouts of 16 steps."""

    @contextmanager
    def always(self: Preemption, iteration: int) -> Iterator[None]:
        self.buffers.control.stop_early[0] = iteration + 1
        yield

    short = dataclasses.replace(SHORT, advantage_norm=over)  # type: ignore[arg-type]
    expected = train_in(tmp_path / "short", short)
    monkeypatch.setattr(Preemption, "around_rollout", always)
    monkeypatch.setattr("shmppo.extensions.preemption.options.SHORTEST", 0.5)
    summary = train_in(tmp_path / "long", short, rollout_steps=32, preempt_fraction=0.5)
    for name in ("weights_sha256", "env_steps", "episodes", "return_mean_100"):
        assert summary[name] == expected[name], name
    assert [float(row["preempted_steps"]) for row in csv_rows(tmp_path / "long" / "metrics.csv")] == [64.0] * 4


@pytest.mark.slow(reason="about 15 s")
def test_the_run_does_not_wait_for_a_slow_worker_and_can_resume(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    summary = train_in(
        run_dir, SHORT, env="environments:SlowEnvironment2-v0", rollout_steps=200, workers=4, preempt_fraction=0.6
    )
    assert summary["inexact_reasons"] == ["--preempt-fraction ends rollouts by the clock"]
    missing = [float(row["preempted_steps"]) for row in csv_rows(run_dir / "metrics.csv")]
    assert summary["env_steps"] == 4 * 4 * 200 - sum(missing)
    assert max(missing) > 0
    assert max(missing) <= 150, "only one worker is slow, and it has at least a quarter of its steps"
    # The action log has the steps of each episode in progress, so the replay succeeds.
    assert resume(run_dir, stop_at_iteration=5)["inexact_reasons"] == summary["inexact_reasons"]


@pytest.mark.parametrize(("workers", "ranks", "ended"), [(1, 1, 0), (1, 2, 8), (2, 0, 8)])
def test_a_rollout_ends_when_half_of_the_workers_or_ranks_have_finished(workers: int, ranks: int, ended: int) -> None:
    finished = np.array([8] * workers + [7] * (4 - workers))
    control: Any = SimpleNamespace(finished_rollouts=finished, stop_early=np.zeros(1, np.int64))
    counts: list[int] = []

    def count(key: str, add: int) -> int:
        assert key == "finished/7"
        counts.append(add)
        return ranks

    group: Any = SimpleNamespace(size=4, count=count)
    deadline = time.monotonic() + 60
    config = dataclasses.replace(SHORT, workers=4, preempt_fraction=0.5)
    buffers: Any = SimpleNamespace(control=control)
    task: Any = None
    with Preemption(config, task, buffers, group, Path()).around_rollout(7):
        while not control.stop_early[0] and len(counts) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert (control.stop_early.tolist(), counts[-1]) == ([ended], 1)


@pytest.mark.slow(reason="about 20 s")
@pytest.mark.usefixtures("environments_importable")
def test_the_run_does_not_wait_for_a_slow_rank(tmp_path: Path) -> None:
    """Half the ranks are enough. So rank 0, which has the slow environment, ends its rollouts when rank 1 has ended."""
    run_dir = tmp_path / "run"
    flags = ("--preempt-fraction", 0.5, "--stop-at-iteration", 4, "--rollout-steps", 200)
    finish(start(run_dir, *flags, env="environments:SlowEnvironment2-v0"))
    first, second = (summary_of(path) for path in directories(run_dir))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["env_steps"] == second["env_steps"] < 4 * 8 * 200
