"""Hashes of trained weights, recorded once per set of library versions, for x86-64 with AVX2 and for arm64.

The other tests compare runs of the same code with each other. These tests compare the code with its own past, so they
find a change of results that affects all runs alike.

    python tests/test_reference_hashes.py --record    # add or replace the entry of this machine

Record new hashes only with new libraries, on another kind of processor, or after an intended change of results.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from public_helpers import shared_run, summary_of

from shmppo import TrainConfig, train
from shmppo.kernels import supported_variants
from shmppo.utils.machine import processor_type

FILE = Path(__file__).parent / "reference_hashes.json"
LIBRARIES = ("numpy", "gymnasium", "torch", "mujoco")
REQUIRED = "CI_REQUIRE_REFERENCE_HASHES"
"""If this environment variable is set, a skip on a known processor counts as a failure."""

CARTPOLE = str(Path(__file__).parents[1] / "examples" / "trained" / "cartpole")
SPLIT = "shmppo.envs.wrappers:SplitObservation(all=[None], positions=[0, None, 2])"
SMALL: dict[str, Any] = {
    "num_envs": 6, "rollout_steps": 32, "seq_len": 8, "minibatches": 2, "epochs": 2, "grad_shards": 2,
    "hidden_size": 16, "encoder_sizes": (16,), "workers": 2, "quiet": True, "stop_at_iteration": 8,
    "check_determinism": 0,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "lstm": {"env": "CartPole-v1", "hide_obs": (1, 3), "value_clip": True, "entropy_coef": 0.01},
    "dict-observations": {
        "env": "space_environments:Shaped", "env_kwargs": {"space": "dict"}, "encoder": "mlp", "prev_action": True,
        "prev_reward": True,
    },
    "image": {"env": "space_environments:Shaped", "env_kwargs": {"space": "image"}, "core": "gru", "rollout_steps": 16},
    "lru": {"env": "CartPole-v1", "core": "lru", "num_layers": 2, "separate_critic": "core"},
    "multi-binary": {"env": "space_environments:Echo-v0", "env_kwargs": {"actions": "multi-binary"}, "core": "gru"},
    "custom-network": {"env": "CartPole-v1", "network": "networks:leaky"},
    "beta": {"env": "Pendulum-v1", "distribution": "beta", "advantage_norm": "global"},
    "state-dependent-deviation": {"env": "Pendulum-v1", "core": "gru", "std": "state", "hide_obs": (2,)},
    "agents": {
        "env": "agent_environments:Crowd", "env_kwargs": {"masks": True}, "action_masks": True, "agent_id": True,
        "critic_state": True, "separate_critic": "all", "core": "gru",
    },
    "self-play": {
        "env": "agent_environments:Nim", "action_masks": True, "self_play": (), "opponent_every": 2, "core": "gru",
    },
    "teacher": {
        "env": "CartPole-v1", "wrappers": (SPLIT,),
        "actor_obs": ("positions",), "critic_obs": ("all",), "separate_critic": "all", "teacher": CARTPOLE,
        "teacher_steps": 6 * 32 * 6, "critic_warmup_steps": 6 * 32 * 2,
    },
    "distillation": {
        "env": "CartPole-v1", "hide_obs": (), "objective": "distill", "teacher": CARTPOLE, "core": "lru",
    },
    "schedule": {"env": "schedules:Leveled", "env_schedule": "schedules:rising"},
    "gru-plain": {"env": "Pendulum-v1", "core": "gru", "num_layers": 2, "squash_actions": True, "clip_reward": 5.0},
    "feed-forward-plain": {"env": "HalfCheetah-v5", "core": "none", "separate_critic": "all"},
    "multi-discrete-plain": {
        "env": "space_environments:Masked-v0", "env_kwargs": {"sizes": [3, 4]}, "action_masks": True,
        "lr_schedule": "kl-adaptive",
    },
    "penalty-plain": {"env": "Pendulum-v1", "objective": "penalty", "optimizer": "sgd"},
    "per-dimension-plain": {"env": "Hopper-v5", "ratio": "per-dimension", "target_kl": 0.05, "log_std_min": -1.0},
    "lmu-plain": {"env": "HalfCheetah-v5", "core": "lmu", "hide_obs": (8, 9)},
    "gtrxl-plain": {"env": "Pendulum-v1", "core": "gtrxl", "num_layers": 2, "attention_window": 9, "seq_len": 6},
    "pendulum-plain": {"env": "Pendulum-v1", "advantage_norm": "none"},
}  # fmt: skip


BY_TORCH = ("image", "custom-network")
"""The cases that torch computes. They run in another process, where torch is imported with --portable."""
BY_MUJOCO = tuple(case for case, fields in CASES.items() if fields["env"] in ("HalfCheetah-v5", "Hopper-v5"))
SCRIPT = """
import json, shmppo
shmppo.portable()
print(json.dumps({{case: shmppo.train(shmppo.TrainConfig(**fields))["weights_sha256"] for case, fields in {}.items()}}))
"""


def this_machine(case: str | None = None) -> dict[str, str]:
    """Versions and processor: everything outside this package that decides the bits of a case, or of all cases."""
    unused = {"torch": case not in (None, *BY_TORCH), "mujoco": case not in (None, *BY_MUJOCO)}
    versions = {name: metadata.version(name) for name in LIBRARIES if not unused.get(name)}
    python = ".".join(platform.python_version_tuple()[:2])
    kernels_suffice = all(unused.values()) and {"avx2", "neon"} & {*supported_variants()}
    processor = {} if kernels_suffice else {"processor": processor_type("native")}
    return {**processor, "python": python, **versions}


def recorded() -> list[dict[str, Any]]:
    """The entries of the file: the keys of `this_machine()`, and `hashes`, the SHA-256 of the weights by case."""
    entries: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []
    return entries


def is_same(entry: dict[str, Any], machine: dict[str, str]) -> bool:
    return all(entry[name] == value for name, value in machine.items())


def reason_to_skip(entries: list[dict[str, Any]], machine: dict[str, str]) -> str | None:
    """Why no entry fits this machine, or None if one does."""
    same_processor = [entry for entry in entries if machine.get("processor") in (None, entry["processor"])]
    if not same_processor:
        return f"no reference hashes for the processor {machine['processor']}"
    if any(is_same(entry, machine) for entry in same_processor):
        return None
    newest = same_processor[-1]
    changed = [f"{name} {newest[name]} (here {value})" for name, value in machine.items() if newest[name] != value]
    return f"the reference hashes are for {', '.join(changed)}; record new ones with {Path(__file__).name} --record"


def weights_by_torch(root: Path) -> dict[str, str]:
    """Train the cases of BY_TORCH in another process, and return the hashes of their weights."""
    fields = {case: SMALL | CASES[case] | {"portable": True, "run_dir": str(root / case)} for case in BY_TORCH}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT.format(fields)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    hashes: dict[str, str] = json.loads(output.splitlines()[-1])
    return hashes


def configuration(case: str, run_dir: Path) -> TrainConfig:
    return TrainConfig(**SMALL | CASES[case], run_dir=str(run_dir))


def expected_hash(case: str) -> str:
    """The recorded hash for this machine. Without an entry, the test is skipped, or fails if REQUIRED is set."""
    entries, machine = recorded(), this_machine(case)
    reason = reason_to_skip(entries, machine)
    if reason is not None:
        if os.environ.get(REQUIRED) and "no reference hashes" not in reason:
            pytest.fail(reason)
        pytest.skip(reason)
    found: str = next(entry["hashes"][case] for entry in entries if is_same(entry, machine))
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case not in BY_TORCH])
def test_weights_are_those_of_the_reference(case: str, shared_directory: Path) -> None:
    expected = expected_hash(case)
    summary = summary_of(shared_run(shared_directory, case, partial(configuration, case)))
    assert summary["exact"]
    assert summary["weights_sha256"] == expected


@pytest.mark.long
def test_weights_that_torch_computes_are_those_of_the_reference(tmp_path: Path) -> None:
    expected = {case: expected_hash(case) for case in BY_TORCH}
    assert weights_by_torch(tmp_path) == expected


def test_the_entries_have_every_case() -> None:
    entries = recorded()
    assert entries
    for entry in entries:
        assert set(entry["hashes"]) == set(CASES)
        assert all(len(value) == 64 for value in entry["hashes"].values())


def test_the_page_names_the_number_of_cases() -> None:
    page = Path(__file__).parents[1] / "docs" / "guides" / "reproducibility.md"
    assert f"compares the hashes of {len(CASES)} configurations" in page.read_text()


def test_the_reason_names_what_differs() -> None:
    entry = {"processor": "P", "python": "3.11", "torch": "2.6.0"}
    assert reason_to_skip([entry], {"processor": "P", "python": "3.11", "torch": "2.6.0"}) is None
    assert "torch 2.6.0 (here 2.7.0)" in str(reason_to_skip([entry], {**entry, "torch": "2.7.0"}))
    assert "processor Q" in str(reason_to_skip([entry], {**entry, "processor": "Q"}))


def record() -> None:
    """Train all cases, and write their hashes as the entry of this machine."""
    machine = this_machine()
    entries = [entry for entry in recorded() if not is_same(entry, machine)]
    with tempfile.TemporaryDirectory() as root:
        hashes = weights_by_torch(Path(root))
        for case in CASES.keys() - hashes.keys():
            hashes[case] = train(configuration(case, Path(root) / case))["weights_sha256"]
    hashes = {case: hashes[case] for case in CASES}
    entries.append({**machine, "hashes": hashes})
    FILE.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        sys.exit("usage: python tests/test_reference_hashes.py --record")
    record()
