"""Helpers that several test modules share: collectors, pools of real workers, networks, and signals to workers."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from conftest import published
from gymnasium import spaces
from public_helpers import slow_after  # noqa: F401 (tests import it from here)
from torch import Tensor

from shmppo.config.flags import parse_start
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.extensions.teaching.demonstrations import Recorder
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Command, ReduceGradients, StepOptimizer
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.models.actor_critic import ActorCritic, Trunk, build_model, parameter_offsets
from shmppo.models.gtrxl import Gtrxl
from shmppo.models.native import NativeNetwork
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import GradientNetwork, NativeGradients
from shmppo.ppo.torch_gradients import TorchGradients
from shmppo.runs.launch import train
from shmppo.sampling.actor import TorchActing
from shmppo.sampling.collector import Collector
from shmppo.sampling.evaluation import EpisodePlayer
from shmppo.spaces.beta import Beta
from shmppo.spaces.distributions import Bernoulli, Categorical, DiagonalGaussian, Distribution
from shmppo.spaces.observations import observation_spec
from shmppo.storage.run_directory import create_run_directory
from shmppo.utils.phase_timer import PhaseTimer

OBS_SIZE, ACTION_SIZE = 5, 2
OBSERVATION = observation_spec(spaces.Box(-1, 1, (OBS_SIZE,)), "a test")
DISTRIBUTION = DiagonalGaussian(spaces.Box(-1, 1, (ACTION_SIZE,)))
CORES = [*((core, layers) for core in ("lstm", "gru", "lmu", "lru", "gtrxl") for layers in (1, 2)), ("none", 1)]
"""Recurrent cores and their numbers of layers."""
OPTIMIZER = (ReduceGradients, StepOptimizer)
"""Commands for which a small network needs no worker."""
COUNTERS = TrainConfig(
    env="environments:Counter-v0", num_envs=5, rollout_steps=20, seq_len=4, minibatches=2, epochs=2, workers=2,
    hidden_size=8, encoder_sizes=(8,), grad_shards=2,
)  # fmt: skip
"""Five environments of two workers, whose observations are known."""
KERNELS = pytest.mark.parametrize("kernel", ["native", "torch"])
"""Of tests whose promise holds for both."""


def memory_run(core: str) -> TrainConfig:
    """A small run of CartPole with hidden velocities and two layers of a core."""
    return TrainConfig(
        env="CartPole-v1", hide_obs=(1, 3), core=core, num_layers=2, num_envs=6, rollout_steps=20, seq_len=9,  # type: ignore[arg-type]
        minibatches=2, epochs=2, hidden_size=8, encoder_sizes=(8,), grad_shards=2, quiet=True, total_steps=6 * 20 * 6,
        attention_window=9,
    )  # fmt: skip


def small_network(core: str, layers: int, separate: Any = "none") -> tuple[TrainConfig, ActorCritic]:
    """A network of 12 units for OBSERVATION and DISTRIBUTION, with random biases as well as weights."""
    sizes: dict[str, Any] = {"core": core, "num_layers": layers, "hidden_size": 12, "encoder_sizes": (9,)}
    config = TrainConfig(**sizes, separate_critic=separate, seq_len=6, attention_window=5)
    torch.manual_seed(0)
    return config, with_noise(ActorCritic(config, OBSERVATION, DISTRIBUTION), 0.3)


Module = TypeVar("Module", bound=torch.nn.Module)


@torch.no_grad()
def with_noise(module: Module, scale: float) -> Module:
    """Add normal noise to all parameters. With biases of 0, tests might not detect gates in the wrong order."""
    for parameter in module.parameters():
        parameter.add_(scale * torch.randn_like(parameter))
    return module


def assert_refused(base: TrainConfig, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Assert that a run with other options is refused in one line before anything starts. message: a pattern."""
    with pytest.raises(ConfigError, match=message) as raised:
        train(dataclasses.replace(base, **changes, run_dir=str(tmp_path / "run")))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def random_states(model: ActorCritic, count: int, seed: int) -> Tensor:
    """Recurrent states [count, S] that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.tanh(torch.randn(count, model.state_size, generator=generator))
    begin = 0
    for trunk in model.trunk_list:
        if isinstance(trunk, Trunk) and isinstance(trunk.core, Gtrxl):  # the last number of each layer is a count
            of_layers = states[:, begin : begin + trunk.state_size].view(count, trunk.layers, trunk.part_size)
            of_layers[..., -1] = torch.randint(1, 6, (count, 1), generator=generator)
        begin += trunk.state_size
    return states


@torch.inference_mode()
def act_steps(
    kernel: str, model: ActorCritic, steps: Sequence[Sequence[np.ndarray]], state: np.ndarray, low: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Act for some steps, as `ActorCritic.forward` learns: [T, B, P], [T, B], and the last state [B, S].

    steps: [B, …] per leaf for each step, as stored; vectors normalized.
    """
    obs, statistics, rows = [np.zeros_like(leaf) for leaf in steps[0]], [None] * len(steps[0]), len(state)
    network: NativeNetwork | TorchActing
    if kernel == "native":
        network = NativeNetwork(model, obs, statistics, row_count=rows, sequences=rows, state=np.zeros_like(state))
    else:
        network = TorchActing(model, obs, statistics, low=low, rows=8)
    network.load()
    network.state[:] = state
    params, values = [], []
    for step in steps:
        for target, leaf in zip(obs, step, strict=True):
            target[:] = leaf
        network.forward()
        params.append(torch.from_numpy(network.params.copy()))
        values.append(torch.from_numpy(network.values[:, 0].copy()))
    return torch.stack(params), torch.stack(values), torch.from_numpy(network.state.copy())


def assert_acting_agrees(kernel: str, model: ActorCritic, steps: Sequence[Sequence[np.ndarray]], state: Tensor) -> None:
    """Assert that acting computes what the learning network does. The arguments are those of `act_steps`."""
    sequences = [torch.from_numpy(np.stack(leaf)) for leaf in zip(*steps, strict=True)]
    with torch.no_grad():
        expected = model(sequences, state)
    for found, wanted in zip(act_steps(kernel, model, steps, state.numpy()), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)


def learning_network(
    kernel: str, config: TrainConfig, model: ActorCritic, obs: np.ndarray
) -> tuple[GradientNetwork, np.ndarray]:
    """A network that learns from observations [T, N, OBS_SIZE], and the memory of its gradients [1, P]."""
    gradients = np.full((1, parameter_offsets(model)[1]), np.nan, np.float32)
    statistics = {"obs_mean": np.zeros(OBS_SIZE, np.float32), "obs_scale": np.ones(OBS_SIZE, np.float32)}
    buffers: Any = SimpleNamespace(
        shard_results=SimpleNamespace(gradients=gradients),
        rollout=SimpleNamespace(obs=[obs]),
        published=SimpleNamespace(**statistics, weights=np.empty(0, np.float32)),
        arrays={"rollout.obs": obs} | {f"published.{name}": array for name, array in statistics.items()},
    )
    made = NativeGradients if kernel == "native" else TorchGradients
    network = made(config, model, buffers)
    network.load()
    return network, gradients


def clone_of_recording(config: TrainConfig, path: Path, episodes: int = 6, max_steps: int = 40) -> TrainConfig:
    """Record episodes of a policy that has not learned, and return the configuration that clones it."""
    task = inspect_task(config)
    recorder, size = Recorder(path), task.observation.normalized_size
    model = build_model(config, task.observation, task.distribution)
    player = EpisodePlayer(config, task, model, stochastic=True, max_steps=max_steps, recorder=recorder)
    player.play(range(episodes), np.zeros(size, np.float32), np.ones(size, np.float32), None)
    player.close()
    recorder.save(config, task)
    return dataclasses.replace(config, objective="clone", demonstrations=str(path))


class Saboteur:
    """Sends a signal to the last worker of a run in this process while it carries out a command.

    Attributes:
        hit: process id of the worker that got the signal; 0 until then.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, at_round: int, number: int, delay: float = 0.0, steps: bool = False
    ) -> None:
        """Prepare the signal `number`, which is sent `delay` seconds after the beginning of round `at_round`, from 1.

        steps: count steps of the optimizer instead of what else workers do. The worker is stopped before its step.
        """
        self.hit = 0
        rounds = 0
        execute = WorkerPool.execute

        def strike_and_execute(pool: WorkerPool, *commands: Command) -> None:
            nonlocal rounds
            counted = [isinstance(one, StepOptimizer) if steps else not isinstance(one, OPTIMIZER) for one in commands]
            rounds += any(counted)
            if rounds == at_round and not self.hit:
                self.hit = pool.workers.pids[-1]
                if steps:
                    os.kill(self.hit, signal.SIGSTOP)
                threading.Timer(delay, os.kill, (self.hit, number)).start()
            execute(pool, *commands)

        monkeypatch.setattr(WorkerPool, "execute", strike_and_execute)


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
    actions = ActionLog(config.rows, task.distribution.action_size, limit=100)
    pool = WorkerPool(config, task, buffers, actions, actions.mark_lost, log_file)
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


def idle_control() -> Any:
    """Counters of progress in which no worker has begun a step."""
    return SimpleNamespace(progress=np.zeros((2, 2), np.int64), finished_rollouts=np.zeros(8, np.int64))


def parse_config(arguments: Sequence[str], default: TrainConfig | None = None) -> TrainConfig:
    """The configuration that flags of train give."""
    return parse_start(arguments, default=default)[0]


def make_run_directory(config: TrainConfig) -> Path:
    """Create the directory of a run, and unlock it."""
    with ExitStack() as stack:
        return create_run_directory(config, stack, Path.cwd())


def torch_distribution(distribution: Distribution, params: Tensor) -> torch.distributions.Distribution:
    """The same distribution as an object of torch.distributions, as a reference for our formulas."""
    if isinstance(distribution, Categorical):
        return torch.distributions.Categorical(logits=params)
    if isinstance(distribution, Bernoulli):
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=params), 1)
    if isinstance(distribution, Beta):
        alpha, beta = (1 + torch.nn.functional.softplus(params)).split(distribution.action_size, -1)
        return torch.distributions.Independent(torch.distributions.Beta(alpha, beta), 1)
    mean, log_std = params.split(distribution.action_size, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)


def assert_near(found: Any, expected: Any, tolerance: float) -> None:
    """Assert that the largest difference is small, relative to the largest number."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected)
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
