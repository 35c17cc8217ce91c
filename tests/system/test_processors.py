"""A run gives the same weights on each x86-64 processor with AVX2: emulated ones against this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_reference_hashes import CASES, SMALL

from shmppo import TrainConfig, portable, train
from shmppo.utils.portable import PROCESSORS

EMULATOR = shutil.which("qemu-x86_64")


def hashes() -> list[str]:
    """Train two iterations of each case, without workers, and return the hashes of the weights."""
    found = []
    for fields in CASES.values():
        fields = SMALL | fields | {"workers": 0, "stop_at_iteration": 2, "portable": True}
        with tempfile.TemporaryDirectory() as directory:
            summary = train(TrainConfig(**fields, run_dir=str(Path(directory) / "run")))
        assert summary["same_bits_on"]["processor"] == PROCESSORS
        found.append(summary["weights_sha256"])
    return found


def run_here(*command: str) -> dict[str, str]:
    """Run this file in another process, and return the hash of each case."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    full = [*command, os.path.realpath(sys.executable), __file__]
    result = subprocess.run(full, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return dict(zip(CASES, result.stdout.split(), strict=True))


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return run_here()


@pytest.mark.slow
@pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (Debian package qemu-user)")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processor", ["Haswell", "Skylake-Client", "EPYC", "Broadwell", "EPYC-Rome"])
def test_an_emulated_processor_trains_the_same_weights(processor: str, expected: dict[str, str]) -> None:
    assert run_here(str(EMULATOR), "-cpu", processor) == expected


if __name__ == "__main__":
    portable()
    print("\n".join(hashes()))
