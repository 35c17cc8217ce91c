"""The determinism guarantee: only the configuration and the seed decide the bits of the weights.

`test_disturbances.py` repeats runs with other workers, killed workers, and stops.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from public_helpers import train_in

from shmppo.config.train_config import TrainConfig
from shmppo.runs.launch import train

SMALL = {"num_envs": 8, "rollout_steps": 32, "minibatches": 2, "epochs": 2, "quiet": True, "stop_at_iteration": 10}
BASE = TrainConfig(env="CartPole-v1", hidden_size=32, **SMALL)  # type: ignore[arg-type]


def test_seed_and_configuration_change_the_hash(tmp_path: Path) -> None:
    base = dataclasses.replace(BASE, workers=0, stop_at_iteration=2)
    variants = {
        "same": base,
        "again": base,
        "seed": dataclasses.replace(base, seed=2),
        "gamma": dataclasses.replace(base, gamma=0.98),
        "shards": dataclasses.replace(base, grad_shards=4),
    }
    hashes = {name: train_in(tmp_path / name, config)["weights_sha256"] for name, config in variants.items()}
    assert hashes["same"] == hashes["again"]
    assert len(set(hashes.values())) == 4


def test_the_steps_of_the_annealing_decide_and_not_where_the_run_stops(tmp_path: Path) -> None:
    base = dataclasses.replace(BASE, workers=0, total_steps=2560, stop_at_iteration=None)
    short = dataclasses.replace(base, total_steps=1024, anneal_steps=2560, run_dir=str(tmp_path / "short"))
    assert train(short)["weights_sha256"] == train_in(tmp_path / "stopped", base, stop_at_iteration=4)["weights_sha256"]


@pytest.mark.long
def test_an_environment_cannot_switch_denormal_numbers_off(tmp_path: Path) -> None:
    """Gradients of 1e-21 have squares that are denormal numbers, which Adam divides by."""
    fields: dict[str, Any] = {"max_grad_norm": 1e-20, "adam_eps": 1e-30, "hidden_size": 8, "encoder_sizes": (8,)}
    hashes = set()
    for env, workers in (("Counter", 0), ("Flushing", 0), ("Flushing", 2)):
        run_dir = str(tmp_path / f"{env}{workers}")
        config = TrainConfig(env=f"environments:{env}", workers=workers, run_dir=run_dir, **(SMALL | fields))
        hashes.add(train(dataclasses.replace(config, stop_at_iteration=2))["weights_sha256"])
    assert len(hashes) == 1


def test_an_environment_cannot_change_the_settings_of_torch(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, kernel="torch", stop_at_iteration=2)
    hashes = {
        train_in(tmp_path / f"{env}{w}", config, env=f"environments:{env}", workers=w)["weights_sha256"]
        for env, w in (("Counter", 0), ("SetsTorch", 0), ("SetsTorch", 1))
    }
    assert len(hashes) == 1


def test_a_callback_cannot_change_the_settings_of_torch(tmp_path: Path) -> None:
    """The environment draws numbers of the default dtype, and oneDNN rounds in another way."""

    def callback(_: Any) -> None:
        torch.set_default_dtype(torch.float64)
        torch.backends.mkldnn.enabled = False

    config = dataclasses.replace(BASE, env="environments:Draws", kernel="torch", workers=0, stop_at_iteration=3)
    hashes = {
        train_in(tmp_path / str(k), config, callback=one)["weights_sha256"] for k, one in enumerate((None, callback))
    }
    assert (len(hashes), torch.get_default_dtype(), torch.backends.mkldnn.enabled) == (1, torch.float32, True)


@pytest.mark.long
def test_a_callback_cannot_change_the_threads_of_torch(tmp_path: Path) -> None:
    """The torch kernels may add the terms of a sum in another order with more threads."""

    def callback(_: Any) -> None:
        torch.set_num_threads(2)

    config = TrainConfig(
        kernel="torch", workers=0, total_steps=2 * 128 * 64, num_envs=64, grad_shards=1, epochs=1, quiet=True
    )
    hashes = {
        train_in(tmp_path / str(k), config, callback=one)["weights_sha256"] for k, one in enumerate((None, callback))
    }
    assert len(hashes) == 1
