"""A learner on another device: the same gradients from copies of the shared memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import published, sampled

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import ActorCritic
from shmppo.ppo.device_gradients import DeviceArena, DeviceGradients
from shmppo.ppo.gradients import ShardGradients
from shmppo.runs.trainer import train
from shmppo.sampling.collector import Collector
from shmppo.utils.phase_timer import PhaseTimer

BASE = TrainConfig(
    num_envs=4, rollout_steps=32, seq_len=8, minibatches=2, epochs=2, hidden_size=16, workers=0, total_steps=4 * 32 * 4,
    quiet=True,
)  # fmt: skip
PENDULUM = dataclasses.replace(BASE, env="Pendulum-v1", squash_actions=True, entropy_coef=0.01, objective="penalty")


@pytest.mark.parametrize("config", [BASE, PENDULUM], ids=["cartpole", "pendulum"])
def test_copies_give_the_same_weights(config: TrainConfig) -> None:
    """The copies are on the CPU here: what is missing on the other side shows as well."""
    weights = []
    for source in (ShardGradients, DeviceGradients):
        task = inspect_task(config)
        arena, learner = published(config, task)
        collector = Collector(config, task, learner.model, arena, low=0, high=4, progress=arena.array("progress")[0])
        collector.start()
        gradients = source(config, task.distribution, learner.model, arena)

        def compute(version: int, epoch: int, minibatch: int, gradients: ShardGradients = gradients) -> None:
            gradients.compute(epoch, minibatch, range(config.shards))

        for iteration in range(3):
            collector.collect(iteration, PhaseTimer())
            learner.update(iteration, compute, PhaseTimer())
            learner.publish_statistics()
        collector.close()
        weights.append(learner.weights_sha256())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"core": "gru", "ratio": "per-dimension", "dual_clip": 3.0, "value_clip": True},
        {"env": "Pendulum-v1", "squash_actions": True, "entropy_coef": 0.01},
        {"env": "Pendulum-v1", "objective": "penalty", "squash_actions": True, "core": "none"},
    ],
)
def test_nothing_of_a_gradient_is_left_on_the_cpu(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried on torch's device "meta", which has shapes and no numbers, and refuses arithmetic with the CPU."""
    config = dataclasses.replace(BASE, **changes)
    task = inspect_task(config)
    arena, learner, own = sampled(config)
    learner.update(0, lambda _, k, m: own.compute(k, m, range(config.shards)), PhaseTimer())  # for its plan
    with torch.device("meta"):
        twin = ActorCritic(config, task.observation, task.distribution)
    there = DeviceArena(arena, "meta")
    gradients = ShardGradients(config, task.distribution, twin, there)
    statistics = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: statistics.append(t) or torch.zeros(t.shape, dtype=t.dtype))
    gradients.compute(0, 0, range(config.shards))
    assert [t.device.type for t in statistics] == ["meta"] * config.shards


def test_each_field_is_copied_when_it_is_told() -> None:
    arena, _ = published(BASE, inspect_task(BASE))
    there = DeviceArena(arena, "cpu")
    copied, other = there.tensor("value"), there.tensor("weights")
    before = other.clone()
    arena.tensor("value").fill_(3.0)
    arena.tensor("weights").fill_(4.0)
    assert copied.sum() == 0
    there.upload(["value"])
    assert (copied == 3.0).all()
    assert torch.equal(other, before)
    there.upload()
    assert (other == 4.0).all()
    other.fill_(5.0)
    there.download("weights")
    assert (arena.tensor("weights") == 5.0).all()
    assert there.array("value").sum() == arena.array("value").sum()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--device cuda cannot be used here \(.+\); use --device cpu"):
        train(dataclasses.replace(BASE, device="cuda", run_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("config", [BASE, PENDULUM], ids=["cartpole", "pendulum"])
def test_a_gpu_learns_what_the_cpu_learns(config: TrainConfig, tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, float]]] = {}
    for device in ("cpu", "cuda"):
        rows[device] = []
        summary = train(
            dataclasses.replace(config, device=device, workers=2, learning="central", run_dir=str(tmp_path / device)),
            callback=lambda row, seen=rows[device]: seen.append(row),  # type: ignore[misc]
        )
        assert summary["exact"] == (device == "cpu")
    first = {device: of[0] for device, of in rows.items()}
    for name in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
        assert first["cuda"][name] == pytest.approx(first["cpu"][name], rel=1e-2, abs=1e-4), name
    assert max(row["first_log_ratio"] for row in rows["cuda"]) < 1e-4
