"""The file of a checkpoint: every damage is detected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shmppo.errors import ConfigError
from shmppo.storage.checkpoint_file import FORMAT, load_checkpoint, write_checkpoint

STATE = {"iteration": 3, "weights": torch.arange(5000.0), "name": "run", "fingerprint": {"shmppo": "0.1.0"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint.pt", STATE)
    return tmp_path / "checkpoint.pt"


def test_a_checkpoint_is_read_as_it_was_written(path: Path) -> None:
    state = load_checkpoint(path)
    assert (state["format"], state["iteration"], state["name"]) == (FORMAT, 3, "run")
    assert torch.equal(state["weights"], STATE["weights"])


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow(reason="5 s"))])
def test_every_flipped_bit_is_detected(path: Path, count: int) -> None:
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    header = np.arange(90 * 8)
    for bit in rng.choice(header, 50).tolist() + rng.integers(len(whole) * 8, size=count - 50).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
            load_checkpoint(path)


def test_every_truncation_and_addition_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    for length in [0, 1, 17, 18, 82, 83, 84, *np.linspace(85, len(whole) - 1, 40).astype(int).tolist()]:
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
            load_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ConfigError, match="its SHA-256 differs"):
        load_checkpoint(path)


def test_a_file_without_its_hash_is_refused(path: Path) -> None:
    torch.save({"format": FORMAT, **STATE}, path)
    with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
        load_checkpoint(path)
