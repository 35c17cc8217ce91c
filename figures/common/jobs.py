"""The training jobs that several experiments measure, as fields of `TrainConfig`."""

from __future__ import annotations

from typing import Any

NETWORK: dict[str, Any] = {
    "rollout_steps": 128, "encoder_sizes": (128,), "hidden_size": 128, "epochs": 4, "minibatches": 4, "seq_len": 16,
}  # fmt: skip
"""Linear(128), tanh, LSTM(128), trained for 4 epochs of 4 minibatches."""
TASK_A: dict[str, Any] = {"env": "HalfCheetah-v5", "num_envs": 16, **NETWORK}
TASK_B: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 64, **NETWORK}
ENDLESS: dict[str, Any] = {"total_steps": 1_000_000_000, "worker_timeout": 3600}
"""For runs that are stopped between time slices and killed at the end."""


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
