"""The training jobs that several experiments measure, as fields of `TrainConfig`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NETWORK: dict[str, Any] = {
    "rollout_steps": 128, "encoder_sizes": (128,), "hidden_size": 128, "epochs": 4, "minibatches": 4, "seq_len": 16,
}  # fmt: skip
"""Linear(128), tanh, LSTM(128), trained for 4 epochs of 4 minibatches."""
TASK_A: dict[str, Any] = {"env": "HalfCheetah-v5", "num_envs": 16, **NETWORK}
TASK_B: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 64, **NETWORK}
ENDLESS: dict[str, Any] = {"total_steps": 1_000_000_000, "worker_timeout": 3600, "rank_timeout": 3600}
"""For runs that are stopped between time slices and killed at the end."""


def flags(fields: Mapping[str, Any]) -> list[str]:
    """Return the fields of a configuration as command-line flags.

    A mapping becomes pairs KEY=VALUE with values in JSON, a tuple becomes several values. False becomes `--no-NAME`.
    """
    arguments: list[str] = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if isinstance(value, Mapping):
            values = [f"{key}={json.dumps(item)}" for key, item in value.items()]
        else:
            values = list(map(str, value)) if isinstance(value, tuple) else [str(value)]
        arguments += [f"--{flag}", *values]
    return arguments


def rank_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank. port: where the ranks meet on this machine."""
    return {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
