"""A pool of real workers: in each phase they write only what the layout table allows, and failures are detected."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from environments import Counter
from helpers import COUNTERS as CONFIG
from helpers import fields_written_in, phase_digests, running_pool

from shmppo.config.train_config import TrainConfig
from shmppo.errors import EnvError, WorkerError
from shmppo.lockstep.pool import Collect, Command, ComputeGradients, Evaluate, ReduceGradients, StepOptimizer
from shmppo.lockstep.worker_processes import StallDetector
from shmppo.runs.launch import train
from shmppo.utils.phase_timer import PHASES
from shmppo.utils.torch_utils import numeric_modes


def test_each_phase_writes_only_the_fields_that_the_table_gives_it(tmp_path: Path) -> None:
    with running_pool(CONFIG, tmp_path / "run.log") as (buffers, learner, pool):

        def changed(act: Callable[..., object], *arguments: Any) -> set[str]:
            """The fields that a call writes."""
            before = phase_digests(buffers)
            act(*arguments)
            after = phase_digests(buffers)
            return {path for path in before if before[path] != after[path]}

        def written(command: Command, phase: str, *always: str) -> set[str]:
            """The fields that a command writes: only those of its phase, and these of them."""
            found, allowed = changed(pool.execute, command), fields_written_in(buffers, phase)
            assert found <= allowed, found - allowed
            assert found >= {*always}
            return found

        assert set(phase_digests(buffers)) | fields_written_in(buffers, "any") == set(buffers.arrays)
        learner.obs_moments.merge(np.array([2]), np.array([[[3.0, 4.0], [5.0, 6.0]]]))
        unused = {f"published.{name}" for name in buffers.published.added}  # the run has no extension
        unchanged = {"published.reset_options", *unused}
        assert changed(learner.publish_statistics, 0) == fields_written_in(buffers, "PUBLISH") - unchanged
        of_rollout = ("obs", "actions", "value", "reward", "sequence_state")
        always = (*(f"rollout.{name}" for name in of_rollout), "carry_odd.state")
        found = written(Collect(0), "COLLECT", *always)
        assert not any(path.startswith("carry_even") for path in found), "iteration 0 reads the even carry"
        unchanged = {"optimizer.learning_rate", "minibatches.coefficients"}  # `published` has set them
        plan = {field.path for field in buffers.fields if field.phase == "PLAN"}
        assert changed(planned, buffers, learner) == plan - unchanged
        written(ComputeGradients(0, 0), "LEARN", "shard_results.gradients", "shard_results.loss_terms")
        of_workers = {"timings.phase_seconds", "timings.command_interval"}  # which have no part of so small a sum
        assert changed(pool.execute, ReduceGradients()) == fields_written_in(buffers, "REDUCE") - of_workers
        state = buffers.optimizer
        state.learning_rate[:], state.gradient_factor[:], state.steps[:] = 0.1, 0.5, 1
        by_learner = {field.path for field in buffers.fields if field.phase == "before STEP"}
        found = changed(pool.execute, StepOptimizer())
        assert found == fields_written_in(buffers, "STEP") - by_learner - of_workers


@pytest.mark.parametrize("episodes", [0, 4])
def test_an_evaluation_has_its_whole_time_in_its_phase_and_may_have_no_episode(episodes: int, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, eval_every=1 if episodes else None, eval_episodes=max(episodes, 1))
    with running_pool(config, tmp_path / "run.log") as (_, _, pool):
        pool.take_times()
        pool.timer.switch("evaluation")
        pool.execute(Evaluate(1))
        times = pool.take_times()
        assert times.phases[PHASES.index("wait")] == times.signaling == 0
        assert times.phases[PHASES.index("evaluation")] > 0


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
        pytest.raises(
            EnvError, match=r"TimeoutError\('no result in time; .*\(episode \d+ with seed \d+, after \d+ steps"
        ),
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
        pool.workers._deaths[0] = [time.monotonic() - 3601] * 3
        os.kill(pool.workers.pids[0], signal.SIGKILL)
        pool.execute(Collect(0))
        assert pool.workers.restarts == 1
        pool.workers._deaths[0] = [time.monotonic() - 3500] * 3
        os.kill(pool.workers.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match="worker 0 died"):
            pool.execute(Collect(0))


class Closes(Counter):
    """Counts the instances that are closed."""

    closed = 0

    def close(self) -> None:
        Closes.closed += 1


def test_a_pool_that_is_closed_twice_closes_its_environments_once() -> None:
    _, _, pool = sampled(dataclasses.replace(CONFIG, env="test_worker_pool:Closes", workers=0))  # closes it
    pool.close()
    assert Closes.closed == 1 + CONFIG.num_envs, "with that of the inspection"


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
    with numeric_modes(3):
        assert train(config)["info"] == {"info/threads": 1, "info/full": 1}
        assert torch.get_num_threads() == 3


def test_a_worker_is_not_stalled_because_the_learner_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, progress = SimpleNamespace(now=0.0), np.zeros((2, 2), np.int64)
    monkeypatch.setattr("shmppo.lockstep.worker_processes.time", SimpleNamespace(monotonic=lambda: clock.now))
    detector, seen = StallDetector(progress, timeout=4.0, interval=1.0), []
    for clock.now in (1000.0, 1001.0, 1002.0, 1003.0, 1004.0):
        progress[1, 0] += 1
        seen.append(detector.look([0, 1]))
    assert seen == [([], [])] * 3 + [([0], []), ([], [0])]
