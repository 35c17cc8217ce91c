"""The topologies benchmark: the bytes that are exchanged, and the command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from conftest import fields_of

from shmppo.bench.topologies import bytes_moved
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task


def test_bytes_moved_by_hand() -> None:
    """16 environments × 32 steps in 2 minibatches of 2 shards, 1 epoch, 2 processes, P weights of 4 bytes each."""
    config = TrainConfig(num_envs=16, rollout_steps=32, minibatches=2, epochs=1, grad_shards=2, workers=2)
    sizes = {field.path: field.bytes for field in fields_of(config, inspect_task(config))}
    weights = sizes["published.weights"]
    central = bytes_moved(config, "central", 2)
    # The rollout goes to the learner, and the weights go back.
    assert central > 2 * weights + sizes["rollout.obs"] + sizes["rollout.actions"] + sizes["rollout.sequence_state"]
    # Per minibatch, the gradient of one shard comes from the other process, and the weights go to it.
    assert bytes_moved(config, "sharded", 2) == central - 2 * weights + 2 * (1 + 1) * weights
    # Per minibatch, each of 2 ranks writes its gradient once for the other one.
    assert bytes_moved(config, "decentralized", 2) == 2 * 2 * weights


@pytest.mark.slow
def test_the_topologies_command_measures_all_of_them(
    run_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = run_command(
        "shmppo.bench", "topologies", "--num-envs", 8, "--rollout-steps", 64, "--minibatches", 2, "--iterations", 5,
        "--processes", 2, "--hidden-size", 16, "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = {row["topology"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["one process", "central", "sharded", "decentralized"]
    assert rows["decentralized"]["allreduce_seconds"] > 0
    assert rows["sharded"]["allreduce_seconds"] == 0
