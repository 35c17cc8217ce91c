"""The update on a device, which is the CPU here: gradients, decisions, and weights are those of the other path."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import planned, sampled
from public_helpers import slow_after, train_in
from test_gradients import AUXILIARY, CONFIG, SHAPED

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, ShmppoError, TrainingError
from shmppo.lockstep.pool import ComputeGradients, ReduceGradients, Update
from shmppo.ppo.device_update import DeviceUpdate
from shmppo.runs.iteration_record import IterationRecord, RecordingLearner
from shmppo.runs.launch import resume, train
from shmppo.tools.verify import verify_run

DEVICE = {"device": "cpu:0", "grad_shards": None}


def drawn(case: int) -> TrainConfig:
    """A random configuration, whose gradients torch computes."""
    draw = np.random.default_rng(case)

    def one_of(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    env = one_of({"env": "CartPole-v1"}, {"env": "Pendulum-v1"}, {"env": "HalfCheetah-v5"}, SHAPED)
    continuous = env["env"] in ("Pendulum-v1", "HalfCheetah-v5")
    changes = env | {
        "core": one_of("lstm", "gru", "none", "lmu", "gtrxl"), "num_layers": one_of(1, 2),
        "objective": one_of("clip", "clip", "penalty"), "value_clip": one_of(True, False), "seq_len": one_of(5, 8, 24),
        "separate_critic": one_of("none", "core", "all"), "squash_actions": continuous and one_of(True, False),
        "entropy_coef": one_of(0.0, 0.02), "advantage_norm": one_of("minibatch", "global", "none"), "seed": case,
        "minibatches": one_of(1, 3), "auxiliary": one_of(None, "networks:Predict"), "attention_window": 4,
        "critic_warmup_steps": 0, "kernel": "torch", "encoder": "mlp" if case % 2 else "auto",
    }  # fmt: skip
    if changes["core"] == "none" and changes["separate_critic"] == "core":
        changes["separate_critic"] = "none"
    if continuous and not changes["squash_actions"]:
        changes["distribution"] = one_of("gaussian", "beta")
    if changes["objective"] == "clip":
        changes["ratio"] = one_of("joint", "per-dimension")
    return dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("case", slow_after(4, range(20), "about 10 s on 2 cores"))
def test_gradients_are_those_of_the_torch_path(case: int) -> None:
    found = []
    for changes in ({}, DEVICE):
        config = dataclasses.replace(drawn(case), **changes)
        buffers, learner, pool = sampled(config)
        planned(buffers, learner)
        with torch.no_grad():  # another policy than that which sampled
            for parameter in learner.model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        last = config.epochs - 1, config.minibatches - 1
        for minibatch in [(0, 0), last]:
            pool.execute(ComputeGradients(*minibatch))
        pool.execute(ReduceGradients())
        results = buffers.shard_results
        found.append((results.total.copy(), results.loss_terms.sum(0), results.max_log_ratio.max()))
    (gradient, terms, largest), (on_device, *others) = found
    assert np.abs(on_device - gradient).max() < 1e-5 * max(1.0, np.abs(gradient).max())
    np.testing.assert_allclose(others[0], terms, rtol=1e-4, atol=1e-6)
    assert others[1] == pytest.approx(largest, rel=1e-4)


UPDATES: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.01},
    "log-std": {"env": "Pendulum-v1", "log_std_min": -0.001, "learning_rate": 0.01},
    "target-kl": {"target_kl": 0.003, "learning_rate": 0.05},
    "auxiliary": AUXILIARY,
    "warm-up": {"critic_warmup_steps": 4 * 48, "separate_critic": "all"},
    "watched": {"kl_profile_every": 1},
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_are_those_of_the_cpu(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **{"adam_eps": 1e-3, "total_steps": 4 * 48 * 3, "quiet": True} | UPDATES[name])
    rows: dict[str, list[Mapping[str, float]]] = {"cpu": [], "cpu:0": []}
    for device, metrics in rows.items():
        changes = {"device": device, "grad_shards": None, "run_dir": str(tmp_path / device[-1])}
        summary = train(dataclasses.replace(config, **changes), callback=metrics.append)
        assert summary["exact"] is not False, summary["inexact_reasons"]
    for cpu, device in zip(rows["cpu"], rows["cpu:0"], strict=True):
        for metric in ("policy_loss", "value_loss", "entropy", "approx_kl", "gradient_norm", "approx_kl_last_epoch"):
            assert device[metric] == pytest.approx(cpu[metric], rel=2e-3, abs=2e-5), metric
        assert device["optimizer_steps"] == cpu["optimizer_steps"]
    if name == "target-kl":
        assert min(row["optimizer_steps"] for row in rows["cpu"]) < config.epochs * config.minibatches


def test_a_step_that_is_not_watched_changes_no_weights(tmp_path: Path) -> None:
    hashes = []
    for name, watched in (("plain", {}), ("watched", {"kl_profile_every": 1})):
        hashes.append(train_in(tmp_path / name, CONFIG, quiet=True, total_steps=400, **DEVICE, **watched))
    assert hashes[0]["weights_sha256"] == hashes[1]["weights_sha256"]


def test_errors_end_the_update_before_the_weights_change() -> None:
    config = dataclasses.replace(CONFIG, **DEVICE)
    for array, value, message in (
        ("log_prob", 0.01, r"minibatch 0 of epoch 0: \|log ratio\| is 1\.0\de-02 but must be below 1e-03"),
        ("value", np.nan, "minibatch 0 of epoch 0: the loss is not finite"),
    ):
        buffers, learner, pool = sampled(config)
        buffers.arrays[f"rollout.{array}"][:] += value
        planned(buffers, learner)
        before = learner.weights_sha256()
        with pytest.raises(TrainingError, match=message):
            learner.update(0, pool)
        assert learner.weights_sha256() == before


def test_nothing_changes_after_the_minibatch_that_ends_an_update() -> None:
    config = dataclasses.replace(CONFIG, target_kl=1e-7, learning_rate=0.01, **DEVICE)
    buffers, learner, pool = sampled(config)
    planned(buffers, learner)
    statistics = learner.update(0, pool)
    after = buffers.published.weights.copy(), buffers.optimizer.moments.copy()
    assert statistics["optimizer_steps"] == 1
    buffers, learner, pool = sampled(dataclasses.replace(config, target_kl=None))
    planned(buffers, learner)
    pool.execute(Update(0, 1, 1e-3))
    assert (buffers.published.weights == after[0]).all()
    assert (buffers.optimizer.moments == after[1]).all()


def test_a_change_of_the_device_makes_a_run_inexact(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, grad_shards=None, quiet=True)
    train_in(tmp_path / "run", config, total_steps=400, stop_at_iteration=1)
    summary = resume(tmp_path / "run", device="cpu:0")
    assert summary["exact"] is False
    assert "resumed with device cpu:0, started with unused" in summary["inexact_reasons"]
    assert summary["same_bits_on"]["device"] == "cpu:0"


def test_a_run_is_verified_and_each_of_its_minibatches_is_recorded(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, quiet=True, total_steps=400, act_on="device", **DEVICE)
    record = IterationRecord(1)
    train(dataclasses.replace(config, run_dir=str(tmp_path / "run")), make_learner=partial(RecordingLearner, record))
    results = [name for name in record.update if name.startswith("results (minibatch")]
    assert len(results) == config.epochs * config.minibatches
    verdict = verify_run(tmp_path / "run", from_iteration=0, workers=2)
    assert verdict.equal, verdict.text


def test_an_operation_that_is_not_deterministic_makes_a_run_inexact(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, network="networks:Puts", quiet=True, total_steps=200, **DEVICE)
    summary = train_in(tmp_path / "run", config)
    assert summary["inexact_reasons"] == ["--network networks:Puts needs put_, which is not deterministic on a GPU"]
    assert not torch.are_deterministic_algorithms_enabled()


def test_too_little_memory_is_found_before_workers_are_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(update: DeviceUpdate, size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(DeviceUpdate, "compute_gradients", full)
    with pytest.raises(
        ShmppoError, match=r"not enough memory \(CUDA out of memory.*\); free memory, or use smaller minib"
    ):
        train_in(tmp_path / "run", CONFIG, **DEVICE)


def test_gradient_shards_mean_nothing_on_a_device() -> None:
    with pytest.raises(ConfigError, match="--grad-shards divides work among cores, but --device is cuda"):
        train(dataclasses.replace(CONFIG, device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("case", range(3))
def test_a_gpu_gives_nearly_the_gradients_of_the_cpu(case: int, tmp_path: Path) -> None:
    rows = {device: list[Mapping[str, float]]() for device in ("cpu", "cuda")}
    for device in rows:
        changes = {"device": device, "grad_shards": None, "run_dir": str(tmp_path / device), "quiet": True}
        config = dataclasses.replace(drawn(case), **changes, total_steps=400)
        summary = train(config, callback=rows[device].append)
        assert summary["exact"] is not False
    first = {device: of[0] for device, of in rows.items()}
    for name in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
        assert first["cuda"][name] == pytest.approx(first["cpu"][name], rel=1e-2, abs=1e-4), name
    assert max(row["first_log_ratio"] for row in rows["cuda"]) < 1e-4
