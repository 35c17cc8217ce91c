"""Gradients on another device: they are the same, and they come from copies of the shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from conftest import planned, published, sampled
from public_helpers import SIX_ITERATIONS

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.pool import Collect, Command, ComputeGradients
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.ppo.device_gradients import DeviceGradients
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.torch_gradients import GradientInputs
from shmppo.runs.launch import train

BASE = dataclasses.replace(SIX_ITERATIONS, kernel="torch")
PENDULUM = dataclasses.replace(BASE, env="Pendulum-v1", squash_actions=True, entropy_coef=0.01, objective="penalty")


AUXILIARY = dataclasses.replace(BASE, auxiliary="networks:Predict")


class WithGradients:
    """A pool whose gradients something else computes."""

    def __init__(self, pool: WorkerPool, gradients: ShardGradients, config: TrainConfig) -> None:
        self.pool, self.gradients, self.shards, self.timer = pool, gradients, range(config.shards), pool.timer

    def execute(self, command: Command) -> None:
        if isinstance(command, ComputeGradients):
            self.gradients.compute(command.epoch, command.minibatch, self.shards)
        else:
            self.pool.execute(command)


@pytest.mark.parametrize("config", [BASE, PENDULUM, AUXILIARY], ids=["cartpole", "pendulum", "auxiliary"])
def test_copies_give_the_same_weights(config: TrainConfig) -> None:
    """The copies are on the CPU here. A field that is not copied shows as well."""
    weights = []
    for source in (ShardGradients, DeviceGradients):
        task = inspect_task(config)
        buffers, learner = published(config, task)
        actions = ActionLog(config.num_envs, task.distribution.action_size, limit=100)
        pool = WorkerPool(config, task, buffers, actions, actions.mark_lost, Path())
        pool.start(learner.model)
        gradients = source(config, task.distribution, learner.model, buffers)
        for iteration in range(3):
            learner.publish_statistics(iteration)
            pool.execute(Collect(iteration))
            planned(buffers, learner)
            learner.update(iteration, WithGradients(pool, gradients, config))  # type: ignore[arg-type]
            learner.update_obs_normalizer(buffers.rollout)
        pool.close()
        weights.append(learner.weights_sha256())
    assert weights[0] == weights[1]


def test_each_field_is_copied_when_it_may_have_changed() -> None:
    buffers, learner, _ = sampled(BASE)
    planned(buffers, learner)
    distribution = inspect_task(BASE).distribution
    device, plain = (kind(BASE, distribution, learner.model, buffers) for kind in (DeviceGradients, ShardGradients))

    def computed(gradients: ShardGradients, minibatch: int) -> bytes:
        gradients.compute(0, minibatch, range(BASE.shards))
        return buffers.shard_results.gradients.tobytes()

    host = GradientInputs.of(buffers)
    for name, tensor in zip(GradientInputs._fields, (*host.obs, *host[1:]), strict=True):
        before = computed(device, 0), computed(device, 1)
        tensor += 0.01
        assert (computed(device, 1) == before[1]) == (name != "weights"), name
        assert computed(device, 0) == computed(plain, 0) != before[0], name


def test_the_gradients_are_copied_back() -> None:
    buffers, learner, pool = sampled(BASE)
    planned(buffers, learner)
    pool.execute(ComputeGradients(0, 0))
    expected = buffers.shard_results.gradients.copy()
    assert expected.any()
    buffers.shard_results.gradients.fill(0.0)
    DeviceGradients(BASE, inspect_task(BASE).distribution, learner.model, buffers).compute(0, 0, range(BASE.shards))
    assert (buffers.shard_results.gradients == expected).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("config", [BASE, PENDULUM, AUXILIARY], ids=["cartpole", "pendulum", "auxiliary"])
def test_a_gpu_gives_nearly_the_gradients_of_the_cpu(config: TrainConfig, tmp_path: Path) -> None:
    rows = {device: list[Mapping[str, float]]() for device in ("cpu", "cuda")}
    for device in rows:
        fields = {"device": device, "workers": 2, "learning": "central", "run_dir": str(tmp_path / device)}
        summary = train(dataclasses.replace(config, **fields), callback=rows[device].append)
        assert summary["exact"] == (device == "cpu")
    first = {device: of[0] for device, of in rows.items()}
    for name in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
        assert first["cuda"][name] == pytest.approx(first["cpu"][name], rel=1e-2, abs=1e-4), name
    assert max(row["first_log_ratio"] for row in rows["cuda"]) < 1e-4
