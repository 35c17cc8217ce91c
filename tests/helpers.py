"""Helpers that several test modules share: collectors, pools of real workers, networks, and signals to workers."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import published
from gymnasium import spaces
from public_helpers import long_after  # noqa: F401 (tests import it from here)
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.learner import Learner
from shmppo.sampling.collector import Collector
from shmppo.sampling.worker import ActionLog
from shmppo.sampling.worker_pool import WorkerPool
from shmppo.spaces.distributions import Bernoulli, Categorical, DiagonalGaussian, Distribution
from shmppo.spaces.observations import observation_spec
from shmppo.storage.run_directory import create_run_directory
from shmppo.utils.phase_timer import PhaseTimer

OBS_SIZE, ACTION_SIZE = 5, 2
OBSERVATION = observation_spec(spaces.Box(-1, 1, (OBS_SIZE,)), "a test")
DISTRIBUTION = DiagonalGaussian(spaces.Box(-1, 1, (ACTION_SIZE,)))
CORES = [("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 2), ("lmu", 1), ("lmu", 2), ("lru", 1), ("lru", 2), ("none", 1)]
"""Recurrent cores and their numbers of layers."""


def memory_run(core: str) -> TrainConfig:
    """A small run of CartPole with hidden velocities and two layers of a core."""
    return TrainConfig(
        env="CartPole-v1", hide_obs=(1, 3), core=core, num_layers=2, num_envs=6, rollout_steps=20, seq_len=9,  # type: ignore[arg-type]
        minibatches=2, epochs=2, hidden_size=8, encoder_sizes=(8,), grad_shards=2, quiet=True, total_steps=6 * 20 * 6,
    )  # fmt: skip


def small_network(core: str, layers: int, separate: Any = "none") -> tuple[TrainConfig, ActorCritic]:
    """A network of 12 units for OBSERVATION and DISTRIBUTION, with random biases as well as weights."""
    sizes: dict[str, Any] = {"core": core, "num_layers": layers, "hidden_size": 12, "encoder_sizes": (9,)}
    config = TrainConfig(**sizes, separate_critic=separate, seq_len=6)
    torch.manual_seed(0)
    model = ActorCritic(config, OBSERVATION, DISTRIBUTION)
    with torch.no_grad():  # with biases of 0, tests might not detect gates in the wrong order
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return config, model


class Saboteur:
    """Sends a signal to a worker in a given round (one COLLECT or LEARN command) of a run in this process.

    Attributes:
        hit: process id of the worker that got the signal; 0 until then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at_round: int, number: int, delay: float) -> None:
        """Prepare the signal `number`, which is sent `delay` seconds after the command of round `at_round`, from 1."""
        self.hit = 0
        rounds = 0
        original = WorkerPool._send

        def send_and_strike(pool: WorkerPool, workers: list[Any], command: Any) -> None:
            nonlocal rounds
            rounds += bool(workers)
            original(pool, workers, command)
            if rounds == at_round and not self.hit:
                self.hit = workers[-1].process.pid
                time.sleep(delay)
                os.kill(self.hit, number)

        monkeypatch.setattr(WorkerPool, "_send", send_and_strike)


def make_collectors(config: TrainConfig) -> tuple[SharedBuffers, Learner, Callable[[int, int], Collector]]:
    """Shared buffers with published weights, their learner, and a function that starts a collector for a range."""
    task = inspect_task(config)
    buffers, learner = published(config, task)

    def collector(low: int, high: int) -> Collector:
        made = Collector(config, task, learner.model, buffers, range(low, high), np.zeros(2, np.int64))
        made.start()
        return made

    return buffers, learner, collector


def collected(config: TrainConfig, *ranges: tuple[int, int]) -> SharedBuffers:
    """The shared buffers after two rollouts, each sampled by one collector per range of environments."""
    buffers, _, collector = make_collectors(config)
    collectors = [collector(low, high) for low, high in ranges]
    for iteration in range(2):
        for one in collectors:
            one.collect(iteration, PhaseTimer())
    return buffers


@contextmanager
def running_pool(config: TrainConfig, log_file: Path) -> Iterator[tuple[SharedBuffers, Learner, WorkerPool]]:
    """A pool of real workers that are ready, with the shared buffers and the learner of the run."""
    task = inspect_task(config)
    buffers, learner = published(config, task)
    actions = ActionLog(config.num_envs, task.distribution.action_size, limit=100)
    pool = WorkerPool(config, task, buffers, actions, actions.forget, log_file)
    try:
        pool.start(learner.model)
        yield buffers, learner, pool
    finally:
        pool.close()


def phase_digests(buffers: SharedBuffers) -> dict[str, str]:
    """Hash of every field, by path, that may be written in certain phases only."""
    paths = [field.path for field in buffers.fields if not field.phase.startswith("any")]
    return {path: hashlib.sha256(buffers.arrays[path].tobytes()).hexdigest() for path in paths}


def fields_written_in(buffers: SharedBuffers, phase: str) -> set[str]:
    """Paths of the fields that the layout table allows to be written in a phase."""
    return {field.path for field in buffers.fields if phase in field.phase}


def memory_digest(buffers: SharedBuffers) -> str:
    """Hash of every byte of the shared memory."""
    return hashlib.sha256(buffers.memory.numpy().tobytes()).hexdigest()


def make_run_directory(config: TrainConfig) -> Path:
    """Create the directory of a run, and unlock it."""
    with ExitStack() as stack:
        return create_run_directory(config, stack)


def torch_distribution(distribution: Distribution, params: Tensor) -> torch.distributions.Distribution:
    """The same distribution as an object of torch.distributions, as a reference for our formulas."""
    if isinstance(distribution, Categorical):
        return torch.distributions.Categorical(logits=params)
    if isinstance(distribution, Bernoulli):
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=params), 1)
    mean, log_std = params.split(distribution.action_size, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
