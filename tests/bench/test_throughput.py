"""The throughput benchmark: utilization of the cores, and runs that cannot be measured completely."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from environments import Counter
from vector_environments import Walk

from shmppo.bench.measured_run import measured_run
from shmppo.bench.throughput import simulator_rate, throughput, utilization
from shmppo.config.train_config import TrainConfig
from shmppo.utils.phase_timer import PHASES

SMALL = TrainConfig(num_envs=4, rollout_steps=32, seq_len=8, minibatches=2, hidden_size=16, workers=0, quiet=True)


@pytest.mark.parametrize(
    ("workers", "learning", "sampling", "rest"),
    [(4, "sharded", 1.5 / 2, (0.6 * 4 + 0.2) / (4 * 1)), (4, "central", 1.5 / 2, (0.6 + 0.2) / (4 * 1)),
     (2, "sharded", 1.5 / 2 / 2, (0.6 * 2 + 0.2) / (4 * 1)), (0, "central", 1.5 / 2 / 4, (0.6 + 0.2) / (4 * 1))],
)  # fmt: skip
def test_utilization_of_four_cores_by_hand(workers: int, learning: Any, sampling: float, rest: float) -> None:
    phases = dict.fromkeys(PHASES, 0.0) | {"environment": 1.0, "inference": 0.5, "wait": 0.6, "other": 0.1}
    phases |= {"gradient": 0.6, "optimizer": 0.15, "reduce": 0.05}  # 3 s, of which the rollout takes 2
    config = TrainConfig(workers=workers, learning=learning, grad_shards=4)
    used = utilization(config, phases, collect_seconds=2.0, cores=4)
    assert used == pytest.approx({"sampling": sampling, "learning": rest})


@pytest.mark.parametrize(("env_backend", "calls"), [("gymnasium", 64), ("vector", 64 / 8)])
def test_a_call_of_a_vector_environment_steps_the_columns_of_a_worker(
    env_backend: str, calls: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = "environments:Counter" if env_backend == "gymnasium" else "vector_environments:Walk"
    config = TrainConfig(env=env, env_backend=env_backend, num_envs=16, workers=2)

    def rate(step: Callable[[int], object], seconds: float) -> float:
        for k in range(50):
            step(k)  # across the end of episodes
        return calls

    for name in ("model", "frame_skip"):  # a vector environment of MuJoCo has them, too
        monkeypatch.setattr(Walk, name, None, raising=False)
    monkeypatch.setattr("shmppo.bench.throughput._rate", rate)
    assert simulator_rate(config) == 64


class Signals(Counter):
    """Sends SIGTERM to its process at its 100th step."""

    steps = 0

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == 100:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


def test_a_run_that_a_signal_ends_is_not_measured() -> None:
    with pytest.raises(KeyboardInterrupt):
        measured_run(dataclasses.replace(SMALL, env="test_throughput:Signals", num_envs=1, minibatches=1), 5)


def test_the_shards_are_those_of_the_run() -> None:
    """For a custom network, the run chooses torch instead of the kernels, and with it fewer shards."""
    config = dataclasses.replace(SMALL, network="networks:leaky", num_envs=16, stop_when=("iteration>=1",))
    assert (config.shards, throughput(config, 4)["shards"]) == (4, 1)
