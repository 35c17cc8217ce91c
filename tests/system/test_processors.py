"""A run gives the same weights on each x86-64 processor with AVX2: emulated ones against this one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_reference_hashes import CASES, SMALL

import shmppo
from shmppo.utils.portable import PROCESSORS

EMULATOR = shutil.which("qemu-x86_64")
PLANTED = "SHMPPO_TEST_PLANTED"
"""Environment variable: if set, the exponential of the loss differs a little, like a function that is not portable."""

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
    assert summary["same_bits_on"]["processor"] == PROCESSORS
    steps = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in record.steps.items()}
    return {**record.start, **steps, **record.update, "weights": summary["weights_sha256"]}


def run_here(*command: str, cases: tuple[str, ...] = tuple(CASES), **environment: str) -> dict[str, dict[str, str]]:
    """Run this file in another process, and return the digests by case."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    full = [*command, os.path.realpath(sys.executable), __file__, *cases]
    result = subprocess.run(full, env=environment, capture_output=True, text=True, check=False)
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


@pytest.mark.slow(reason="about 30 s")
def test_a_planted_difference_is_named() -> None:
    cases = ("lstm", "gru")
    found = first_differences(run_here(cases=cases), run_here(cases=cases, **{PLANTED: "1"}))
    assert found == dict.fromkeys(cases, "gradients (minibatch 0 of epoch 0)")


@pytest.mark.slow(reason="about 5 min")
@needs_emulator
@pytest.mark.timeout(600)
def test_a_run_is_resumed_on_an_emulated_processor(tmp_path: Path) -> None:
    fields: dict[str, Any] = SMALL | CASES["lstm"]
    config = shmppo.TrainConfig(**fields, run_dir=str(tmp_path / "run"))
    straight = shmppo.train(dataclasses.replace(config, run_dir=str(tmp_path / "straight"), stop_at_iteration=4))
    shmppo.train(dataclasses.replace(config, stop_at_iteration=2))
    flags = ["--resume", str(tmp_path / "run"), "--stop-at-iteration", "4", "--workers", "0", "--quiet"]
    command = [str(EMULATOR), "-cpu", "Haswell", os.path.realpath(sys.executable), "-m", "shmppo.train", *flags]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exact"]
    assert summary["weights_sha256"] == straight["weights_sha256"]


def main(cases: list[str]) -> None:
    shmppo.portable()
    if PLANTED in os.environ:
        from shmppo.ppo import gradients

        exp = gradients.exp
        gradients.exp = lambda x: exp(x) * (1 + 2**-22)  # type: ignore[attr-defined]
    print(json.dumps({case: digests(case) for case in cases}))


if __name__ == "__main__":
    main(sys.argv[1:])
