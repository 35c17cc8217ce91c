"""Networks and batches whose sizes are no multiples of 8 give the same weights for any number of workers.

Matrix products of such sizes use other kernels than those of round sizes, and may give other bits by shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmppo import TrainConfig, train


def odd_configuration(index: int) -> dict[str, Any]:
    """Draw a configuration. All sizes in it are no multiples of 8."""
    rng = np.random.default_rng(index)

    def size(low: int, high: int) -> int:
        return int(rng.choice([n for n in range(low, high + 1) if n % 8]))

    num_envs = size(3, 13)
    return {
        "env": str(rng.choice(["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])),
        "core": str(rng.choice(["lstm", "gru", "lmu", "lru", "gtrxl", "none"])),
        "num_envs": num_envs,
        "hidden_size": size(3, 65),
        "attention_heads": 1,
        "attention_window": size(3, 20),
        "encoder_sizes": tuple(size(3, 65) for _ in range(rng.integers(0, 3))),
        "num_layers": int(rng.integers(1, 3)),
        "separate_critic": ["none", "all"][rng.integers(2)],
        "rollout_steps": size(9, 20),
        "seq_len": size(3, 9),
        "minibatches": int(rng.integers(1, 3)),
        "grad_shards": int(rng.integers(1, 3)),
        "epochs": 2,
        "stop_at_iteration": 3,
        "learning": str(rng.choice(["auto", "central", "sharded"])),
    }


def assert_one_hash(fields: dict[str, Any], root: Path) -> None:
    """Train with 0 to 3 workers. All runs must have the same weights, and be exact."""
    hashes = {}
    for workers in (0, 1, 2, 3):
        learning = "central" if not workers else fields.get("learning", "auto")
        changes = {"workers": workers, "learning": learning, "quiet": True, "run_dir": str(root / str(workers))}
        summary = train(TrainConfig(**{**fields, **changes}))
        assert summary["exact"]
        hashes[workers] = summary["weights_sha256"]
    assert len(set(hashes.values())) == 1, (fields, hashes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_200_configurations_in_one_process_give_one_hash_each(tmp_path: Path) -> None:
    for index in range(200):
        assert_one_hash(odd_configuration(index), tmp_path / str(index))
