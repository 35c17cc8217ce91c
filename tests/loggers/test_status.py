"""The state of a run for displays: history, progress of the running iteration, times, and warnings."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import idle_control

from shmppo.config.train_config import TrainConfig
from shmppo.loggers import status as status_module
from shmppo.loggers.status import RunStatus
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.signals import StopRequest

CONFIG = TrainConfig(num_envs=8, rollout_steps=16, workers=2, total_steps=8 * 16 * 4)


def row(iteration: int, value: float = 1.0) -> dict[str, float]:
    return {"iteration": iteration, "env_steps": 128 * iteration, "wall_seconds": 2.0 * iteration,
            "return_mean_100": value, "episodes": 1}  # fmt: skip


def new_status(config: TrainConfig = CONFIG, iteration: int = 0) -> Any:
    return RunStatus(config, Path("runs/a"), StopRequest(), idle_control(), iteration)


def test_the_activity_follows_the_counters_of_the_workers() -> None:
    status = new_status()
    assert status.activity == "starting 2 workers and their environments"
    status.timer = PhaseTimer()
    assert status.activity == "sampling 0 of 128 steps"
    status.control.progress[:, 0] = 8, 4
    assert status.activity == "sampling 48 of 128 steps"
    assert status.steps == 48
    status.control.progress[:, 0] = 16
    status.control.finished_rollouts[:] = 1
    assert status.activity == "updating the weights"
    status.timer.switch("evaluation")
    assert status.activity == "evaluating the weights in 10 episodes"
    status.timer.switch("other")
    status.add(row(1), [], 0)
    assert status.activity == "sampling 0 of 128 steps"
    assert status.steps == 128
    status.add(row(4), [], 0)
    assert status.activity == "finished"


def test_the_activity_names_a_worker_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    status = new_status()
    status.timer = PhaseTimer()
    seen = []
    for clock.now, steps in ((100.0, (3, 1)), (104.0, (3, 2)), (111.0, (3, 3)), (115.0, (4, 3)), (130.0, (16, 3))):
        status.control.progress[:, 0] = steps
        seen.append(status.activity.partition(", ")[2])
    assert seen == ["", "", "worker 0 has made no progress for 11 s", "", "worker 1 has made no progress for 19 s"]


def test_a_stopped_run_says_where_it_stopped_and_a_finished_one_does_not() -> None:
    status = new_status()
    status.timer = PhaseTimer()
    status.stop.signal = signal.SIGINT
    status.stop.make("signal")
    status.add(row(1), [], 0)
    assert status.stopping == "stopping after this iteration (press Ctrl-C again to stop at once)"
    status.ended = True
    assert status.stopping == "stopped after iteration 1 of 4, because of a signal"
    status.stop = StopRequest()
    status.stop.make("eval/return>=5")
    assert status.stopping == "stopped after iteration 1 of 4, because eval/return>=5"
    status.add(row(4), [], 0)
    assert (status.stopping, status.activity) == (None, "finished")


def test_the_title_names_hidden_observations() -> None:
    assert new_status().title == "CartPole-v1, observations 1, 3 hidden  8 environments, 2 workers"
    visible = TrainConfig(env="CartPole-v1", num_envs=8, workers=2)
    assert new_status(visible).title == "CartPole-v1  8 environments, 2 workers"


def test_the_remaining_time_is_that_of_the_remaining_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    status = new_status()
    assert status.remaining is None
    status.add(row(1), [], 0)
    assert status.remaining == 6.0
    now[0] += 1.5
    assert (status.remaining, status.elapsed) == (4.5, 3.5)
    status.add(row(4), [], 0)
    assert status.remaining == 0.0
