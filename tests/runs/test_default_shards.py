"""What computes a network by default, and in how many gradient shards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from public_helpers import train_in

from shmppo.config.train_config import TrainConfig, load_config
from shmppo.errors import ConfigError
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.tools.run_process import RunProcess

# 4 · 128 steps in 2 minibatches of 256 steps
BASE = TrainConfig(
    num_envs=4, rollout_steps=128, seq_len=32, minibatches=2, epochs=1, hidden_size=8, workers=0, quiet=True,
    stop_at_iteration=1, check_determinism=0,
)  # fmt: skip
IMAGES: dict[str, Any] = {"env": "space_environments:Shaped", "env_kwargs": {"space": "image"}}


@pytest.mark.parametrize(
    ("changes", "kernel", "shards"),
    [
        ({}, "native", 4),
        ({"kernel": "torch"}, "torch", 1),
        (IMAGES, "native", 4),
        (IMAGES | {"kernel": "torch"}, "torch", 4),
        (IMAGES | {"encoder": "mlp"}, "native", 4),
        ({"env": "agent_environments:Crowd", "core": "gru"}, "native", 8),
    ],
    ids=str,
)
def test_torch_computes_small_shards_only_with_convolutions(
    changes: dict[str, Any], kernel: str, shards: int, tmp_path: Path
) -> None:
    config = dataclasses.replace(BASE, run_dir=str(tmp_path / "run"), **changes)
    train(config)
    stored = load_config(tmp_path / "run")
    assert (stored.kernel, stored.shards) == (kernel, shards)
    RunProcess(config, tmp_path / "run")  # it could be continued
    with pytest.raises(ConfigError, match="has a run with another --grad-shards; name another directory"):
        RunProcess(dataclasses.replace(config, grad_shards=2), tmp_path / "run")


def test_a_run_of_an_older_version_keeps_its_shards(tmp_path: Path) -> None:
    """Checkpoints of older versions do not say that the network has convolutions."""
    train_in(tmp_path / "run", BASE, **IMAGES, kernel="torch", grad_shards=1)
    path = tmp_path / "run" / "checkpoint.pt"
    state = load_checkpoint(path)
    fields = {**json.loads(state["config"]), "grad_shards": None}
    del fields["convolutions"]
    write_checkpoint(path, state | {"config": json.dumps(fields)})
    assert TrainConfig(**resume(tmp_path / "run", stop_at_iteration=2)["config"]).shards == 1
