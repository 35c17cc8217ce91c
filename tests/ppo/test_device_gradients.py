"""Gradients on another device: they are the same, and they come from copies of the shared memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import planned, published, sampled

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.models.actor_critic import build_meta_model
from shmppo.ppo.device_gradients import DeviceCopies, DeviceGradients
from shmppo.ppo.losses import GradientInputs, ShardGradients
from shmppo.runs.trainer import train
from shmppo.sampling.pool import Pool
from shmppo.sampling.worker import ActionLog

BASE = TrainConfig(
    num_envs=4, rollout_steps=32, seq_len=8, minibatches=2, epochs=2, hidden_size=16, workers=0, total_steps=4 * 32 * 4,
    quiet=True,
)  # fmt: skip
PENDULUM = dataclasses.replace(BASE, env="Pendulum-v1", squash_actions=True, entropy_coef=0.01, objective="penalty")


@pytest.mark.parametrize("config", [BASE, PENDULUM], ids=["cartpole", "pendulum"])
def test_copies_give_the_same_weights(config: TrainConfig) -> None:
    """The copies are on the CPU here. A field that is not copied shows as well."""
    weights = []
    for source in (ShardGradients, DeviceGradients):
        task = inspect_task(config)
        buffers, learner = published(config, task)
        actions = ActionLog(config.num_envs, task.distribution.action_size, limit=100)
        pool = Pool(config, task, buffers, actions, actions.forget)
        pool.start(learner.model)
        pool._gradients = source(config, task.distribution, learner.model, buffers)
        for iteration in range(3):
            learner.begin(iteration)
            pool.collect(iteration)
            planned(buffers, learner)
            learner.update(buffers.minibatches, pool)
            learner.update_obs_normalizer(buffers.rollout)
        pool.close()
        weights.append(learner.weights_sha256())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"core": "gru", "ratio": "per-dimension", "dual_clip": 3.0, "value_clip": True},
        {"env": "Pendulum-v1", "squash_actions": True, "entropy_coef": 0.01, "core": "lmu"},
        {"env": "Pendulum-v1", "core": "lru", "num_layers": 2},
        {"env": "Pendulum-v1", "objective": "penalty", "squash_actions": True, "core": "none"},
    ],
)
def test_only_the_loss_is_computed_on_the_cpu(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is torch's "meta". It has shapes and no numbers, and raises if a CPU tensor takes part."""
    config = dataclasses.replace(BASE, **changes)
    task = inspect_task(config)
    buffers, learner, _ = sampled(config)
    planned(buffers, learner)
    meta_model = build_meta_model(config, task.observation, task.distribution)
    inputs = DeviceCopies(GradientInputs.of(buffers), "meta").inputs
    memory = torch.zeros(buffers.shard_results.gradients.shape, device="meta")
    gradients = ShardGradients(config, task.distribution, meta_model, buffers, inputs, memory)
    transferred: list[torch.Tensor] = []

    def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
        transferred.append(tensor)
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(torch.Tensor, "cpu", to_cpu)
    gradients.compute(0, 0, range(config.shards))
    # The policy parameters and the value of each step, and nothing else, are transferred.
    assert {t.device.type for t in transferred} == {"meta"}
    steps = sum(t.shape[0] for t in transferred) // 2
    assert sum(t.numel() for t in transferred) == steps * (task.distribution.num_params + 1)


def test_upload_copies_the_named_fields() -> None:
    buffers, _ = published(BASE, inspect_task(BASE))
    host = GradientInputs.of(buffers)
    copies = DeviceCopies(host, "cpu")
    states, weights, (obs,) = copies.inputs.sequence_state, copies.inputs.weights, copies.inputs.obs
    buffers.rollout.sequence_state.fill(3.0)
    buffers.published.weights.fill(4.0)
    buffers.rollout.obs[0].fill(5.0)
    assert not states.any()
    copies.upload(["sequence_state"])
    assert (states == 3.0).all()
    assert not weights.any()
    assert not obs.any()
    copies.upload()
    assert (weights == 4.0).all()
    assert (obs == 5.0).all()
    for name, value in vars(copies.inputs).items():
        for copied, original in zip(
            *(v if isinstance(v, tuple) else (v,) for v in (value, getattr(host, name))), strict=True
        ):
            assert torch.equal(copied, original), name
            assert copied.data_ptr() != original.data_ptr() or not copied.numel(), name


@pytest.mark.parametrize("refresh_states", [False, True])
def test_each_field_is_copied_when_it_may_have_changed(refresh_states: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(BASE, refresh_states=refresh_states)
    buffers, learner, _ = sampled(config)
    planned(buffers, learner)
    gradients = DeviceGradients(config, inspect_task(config).distribution, learner.model, buffers)
    uploads: list[tuple[str, ...]] = []
    upload = DeviceCopies.upload

    def recorded(copies: DeviceCopies, names: tuple[str, ...] | None = None) -> None:
        uploads.append(("all",) if names is None else names)
        upload(copies, names)

    monkeypatch.setattr(DeviceCopies, "upload", recorded)
    for epoch in range(2):
        for minibatch in range(2):
            gradients.compute(epoch, minibatch, range(config.shards))
    states = ("sequence_state",) if refresh_states else ()
    assert uploads == [("all",), ("weights",), ("weights", *states), ("weights",)]


def test_the_gradients_are_copied_back() -> None:
    buffers, learner, pool = sampled(BASE)
    planned(buffers, learner)
    pool.compute_gradients(0, 0)
    expected = buffers.shard_results.gradients.copy()
    assert expected.any()
    buffers.shard_results.gradients.fill(0.0)
    DeviceGradients(BASE, inspect_task(BASE).distribution, learner.model, buffers).compute(0, 0, range(BASE.shards))
    assert (buffers.shard_results.gradients == expected).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_torch_cannot_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--device cuda cannot be used here \(.+\); use --device cpu"):
        train(dataclasses.replace(BASE, device="cuda", run_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("config", [BASE, PENDULUM], ids=["cartpole", "pendulum"])
def test_a_gpu_gives_nearly_the_gradients_of_the_cpu(config: TrainConfig, tmp_path: Path) -> None:
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
