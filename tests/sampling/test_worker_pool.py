"""A pool of real workers: in each phase they write only what the layout table allows."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from helpers import fields_written_in, phase_digests, running_pool

from shmppo.config.train_config import TrainConfig
from shmppo.errors import WorkerError
from shmppo.lockstep.pool import Collect, ComputeGradients, ReduceGradients, RefreshStates, StepOptimizer
from shmppo.runs.trainer import train
from shmppo.sampling.collector import Collector

CONFIG = TrainConfig(
    env="environments:Counter-v0", num_envs=5, rollout_steps=20, seq_len=4, minibatches=2, epochs=2, workers=2,
    hidden_size=8, encoder_sizes=(8,), grad_shards=2,
)  # fmt: skip


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {path for path in before if before[path] != after[path]}


def test_each_phase_writes_only_the_fields_that_the_table_gives_it(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, refresh_states=True)
    with running_pool(config, tmp_path / "run.log") as (buffers, learner, pool):
        before = phase_digests(buffers)
        assert set(before) | fields_written_in(buffers, "any") == set(buffers.arrays)
        learner.obs_moments.merge(2, np.array([3.0, 4.0]), np.array([5.0, 6.0]))
        learner.publish_statistics(0)
        after = phase_digests(buffers)
        unchanged = {"published.reset_options"}
        unchanged |= {f"published.opponent{part}" for part in ("s", "_mean", "_scale")}  # there are none
        assert changed(before, after) == fields_written_in(buffers, "PUBLISH") - unchanged

        before = after
        pool.execute(Collect(0))
        after = phase_digests(buffers)
        written, allowed = changed(before, after), fields_written_in(buffers, "COLLECT")
        assert written <= allowed, written - allowed
        assert {
            "rollout.obs", "rollout.actions", "rollout.value", "rollout.reward", "carry_odd.state",
        } <= written  # fmt: skip
        assert not any(path.startswith("carry_even") for path in written), "iteration 0 reads the even carry"

        before = after
        planned(buffers, learner)
        after = phase_digests(buffers)
        unchanged = {"optimizer.learning_rate", "minibatches.coefficients"}  # `published` has set them
        assert changed(before, after) == {field.path for field in buffers.fields if field.phase == "PLAN"} - unchanged

        before = after
        pool.execute(ComputeGradients(0, 0))
        after = phase_digests(buffers)
        written, allowed = changed(before, after), fields_written_in(buffers, "LEARN")
        assert written <= allowed, written - allowed
        assert {"shard_results.gradients", "shard_results.loss_terms"} <= written

        before = after
        pool.execute(ReduceGradients())
        after = phase_digests(buffers)
        of_workers = {"timings.phase_seconds", "timings.command_interval"}  # which have no part of so small a sum
        assert changed(before, after) == fields_written_in(buffers, "REDUCE") - of_workers

        state = buffers.optimizer
        state.learning_rate[:], state.gradient_factor[:], state.steps[:] = 0.1, 0.5, 1
        before = phase_digests(buffers)
        pool.execute(StepOptimizer())
        by_learner = {field.path for field in buffers.fields if field.phase == "before STEP"}
        assert changed(before, phase_digests(buffers)) == fields_written_in(buffers, "STEP") - by_learner - of_workers

        buffers.published.weights[:] *= 1.1
        before = phase_digests(buffers)
        pool.execute(RefreshStates())
        after = phase_digests(buffers)
        written, allowed = changed(before, after), fields_written_in(buffers, "REFRESH")
        assert written <= allowed, written - allowed
        assert {"rollout.sequence_state", "rollout.state_drift"} <= written


def test_a_worker_that_hangs_is_detected_while_another_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout of the other worker would take 1000 s."""
    monkeypatch.setattr("shmppo.lockstep.worker_processes.MAX_RESTARTS", 0)
    lock = {"lock": str(tmp_path / "lock")}
    config = dataclasses.replace(
        CONFIG, env="faulty_environments:OneHangs", env_kwargs=lock, num_envs=2, rollout_steps=100_000, seq_len=100_000,
        minibatches=1, worker_timeout=1.0,
    )  # fmt: skip
    with (
        running_pool(config, tmp_path / "run.log") as (_, _, pool),
        pytest.raises(WorkerError, match=r"worker \d \(pid \d+\) has made no progress for 1 s"),
    ):
        pool.execute(Collect(0))


@pytest.mark.long
def test_the_first_evaluation_may_take_as_long_as_a_start(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, env="faulty_environments:SlowToMake", workers=1, worker_timeout=1.0, eval_every=10, eval_episodes=4,
        eval_env_kwargs={"seconds": 0.4}, run_dir=str(tmp_path / "run"), total_steps=CONFIG.batch_steps, quiet=True,
    )  # fmt: skip
    assert train(config)["worker_restarts"] == 0


def test_only_failures_of_the_last_hour_count(tmp_path: Path) -> None:
    with running_pool(dataclasses.replace(CONFIG, workers=1), tmp_path / "run.log") as (_, _, pool):
        pool._workers._deaths[0] = [time.monotonic() - 3601] * 3
        os.kill(pool.pids[0], signal.SIGKILL)
        pool.execute(Collect(0))
        assert pool.restarts == 1
        pool._workers._deaths[0] = [time.monotonic() - 3500] * 3
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match="worker 0 died"):
            pool.execute(Collect(0))


def test_a_pool_that_is_closed_twice_closes_its_environments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Collector] = []
    monkeypatch.setattr(Collector, "close", lambda collector: closed.append(collector))
    _, _, pool = sampled(dataclasses.replace(CONFIG, workers=0))  # closes it
    pool.close()
    assert len(closed) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_each_command_begins_with_one_thread_and_the_full_precision_of_torch(
    workers: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Otherwise an environment that changes them would change sums of gradients. An iteration is one step."""
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    config = TrainConfig(
        env="environments:ManyThreads", env_kwargs={"length": 1}, info_keys=("threads", "full"), num_envs=1,
        rollout_steps=1, seq_len=1, minibatches=1, epochs=1, hidden_size=8, workers=workers, quiet=True,
        total_steps=5, check_determinism=0, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert train(config)["info"] == {"info/threads": 1, "info/full": 1}
