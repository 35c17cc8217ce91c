"""A run gives the same weights on each x86-64 processor with AVX2, and on arm64: emulated ones against this one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_reference_hashes import BY_MUJOCO, BY_TORCH, CASES, SMALL

import shmppo
from shmppo.utils.portable import NUMPY, PROCESSORS, TORCH

EMULATOR = shutil.which("qemu-x86_64")
ARM64 = os.environ.get("SHMPPO_ARM64_PYTHON")
"""Environment variable: a Python on emulated arm64, as `tests/arm64.sh` makes it."""
PLANTED = "SHMPPO_TEST_PLANTED"
"""Environment variable: if set, the exponential of the loss differs a little, like a function that is not portable."""

needs_arm64 = pytest.mark.skipif(ARM64 is None, reason="SHMPPO_ARM64_PYTHON is not set")
needs_emulator = pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (Debian package qemu-user)")


def digests(case: str) -> dict[str, str]:
    """Train two iterations of a case, without workers.

    Returns:
        Digests of the data of the first iteration in the order in which they are computed, and of the last weights.
    """
    from shmppo.runs.iteration_record import IterationRecord, RecordingLearner
    from shmppo.runs.launch import train

    fields = SMALL | CASES[case] | {"workers": 0, "stop_at_iteration": 2, "portable": True}
    record = IterationRecord(0)
    with tempfile.TemporaryDirectory() as directory:
        config = shmppo.TrainConfig(**fields, run_dir=str(Path(directory) / "run"))
        summary = train(config, make_learner=partial(RecordingLearner, record))
    assert PROCESSORS[platform.machine()] in summary["same_bits_on"]["processor"]
    steps = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in record.steps.items()}
    return {**record.start, **steps, **record.update, "weights": summary["weights_sha256"]}


def unpinned() -> dict[str, str]:
    """The environment variables for another Python, without those that this one has set for its own processor."""
    kept = {name: value for name, value in os.environ.items() if name not in NUMPY | TORCH}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)}


def run_here(*command: str, cases: tuple[str, ...] = tuple(CASES), **environment: str) -> dict[str, dict[str, str]]:
    """Run this file in another process, and return the digests by case."""
    python = () if command == (ARM64,) else (os.path.realpath(sys.executable),)
    full = [*command, *python, __file__, *cases]
    result = subprocess.run(full, env=unpinned() | environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    found: dict[str, dict[str, str]] = json.loads(result.stdout)
    return found


def first_differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, str]:
    """Return the first field that differs, by case."""
    return {
        case: next(name for name, digest in one[case].items() if other[case][name] != digest)
        for case in one
        if one[case] != other[case]
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, str]]:
    return run_here()


@pytest.mark.slow(reason="about 10 min per processor")
@needs_emulator
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processor", ["Haswell", "Skylake-Client", "EPYC", "Broadwell", "EPYC-Rome"])
def test_an_emulated_processor_trains_the_same_weights(processor: str, expected: dict[str, dict[str, str]]) -> None:
    assert first_differences(expected, run_here(str(EMULATOR), "-cpu", processor)) == {}


@pytest.mark.slow(reason="about 2 min")
@needs_arm64
@pytest.mark.timeout(1200)
def test_emulated_arm64_trains_the_same_weights(expected: dict[str, dict[str, str]]) -> None:
    cases = tuple(case for case in CASES if case not in (*BY_MUJOCO, *BY_TORCH))
    assert first_differences({case: expected[case] for case in cases}, run_here(str(ARM64), cases=cases)) == {}


@pytest.mark.slow(reason="about 30 s")
def test_a_planted_difference_is_named() -> None:
    cases = ("lstm", "gru-plain")
    found = first_differences(run_here(cases=cases), run_here(cases=cases, **{PLANTED: "1"}))
    assert found == dict.fromkeys(cases, "gradients (minibatch 0 of epoch 0)")


def resume_elsewhere(command: list[str], run_dir: Path, stop_at_iteration: int) -> dict[str, Any]:
    """Resume a run on another processor, and return the summary. command: starts Python there."""
    flags = ["--resume", str(run_dir), "--stop-at-iteration", str(stop_at_iteration), "--workers", "0", "--quiet"]
    full = [*command, "-m", "shmppo.train", *flags]
    done = subprocess.run(full, env=unpinned(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


@pytest.mark.slow(reason="about 5 min")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "processor", [pytest.param("x86-64", marks=needs_emulator), pytest.param("arm64", marks=needs_arm64)]
)
def test_a_run_is_resumed_on_an_emulated_processor_and_back(processor: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = SMALL | CASES["lstm"]
    config = shmppo.TrainConfig(**fields, run_dir=str(tmp_path / "run"))
    straight = shmppo.train(dataclasses.replace(config, run_dir=str(tmp_path / "straight"), stop_at_iteration=6))
    shmppo.train(dataclasses.replace(config, stop_at_iteration=2))
    x86_64 = [str(EMULATOR), "-cpu", "Haswell", os.path.realpath(sys.executable)]
    assert resume_elsewhere(x86_64 if processor == "x86-64" else [str(ARM64)], tmp_path / "run", 4)["exact"]
    summary = shmppo.resume(tmp_path / "run", stop_at_iteration=6)
    assert summary["exact"]
    assert summary["weights_sha256"] == straight["weights_sha256"]


def main(cases: list[str]) -> None:
    shmppo.portable()
    if PLANTED in os.environ:
        from shmppo.ppo import loss

        exp = loss.exp
        loss.exp = lambda x: exp(x) * (1 + 2**-22)  # type: ignore[attr-defined]
    print(json.dumps({case: digests(case) for case in cases}))


if __name__ == "__main__":
    main(sys.argv[1:])
