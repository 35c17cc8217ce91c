"""A run with the kernels gives the same weights on each processor: emulated ones against this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_reference_hashes import CASES, OF_THIS_PROCESSOR, SMALL

from shmppo import TrainConfig, train

EMULATOR = shutil.which("qemu-x86_64")
NAMES = [name for name in CASES if name not in OF_THIS_PROCESSOR]


def hashes() -> list[str]:
    """Train two iterations of each case, without workers, and return the hashes of the weights."""
    found = []
    for name in NAMES:
        fields = SMALL | CASES[name] | {"workers": 0, "stop_at_iteration": 2}
        with tempfile.TemporaryDirectory() as directory:
            found.append(train(TrainConfig(**fields, run_dir=str(Path(directory) / "run")))["weights_sha256"])
    return found


@pytest.mark.slow
@pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (Debian package qemu-user)")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processor", ["Haswell", "Skylake-Client", "EPYC", "Broadwell", "EPYC-Rome"])
def test_an_emulated_processor_trains_the_same_weights(processor: str) -> None:
    assert EMULATOR is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [EMULATOR, "-cpu", processor, os.path.realpath(sys.executable), __file__]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split() == hashes()


if __name__ == "__main__":
    print("\n".join(hashes()))
