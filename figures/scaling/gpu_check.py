"""Check a GPU: its gradients against those of the CPU, CUDA graphs against single operations, and hashes of runs.

    python -m figures.scaling.measure gpu --check

It writes gpu_check.csv. With --device cpu:0, it runs on a machine without a GPU, for a try of the program itself.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from figures.common.jobs import TASK_A
from figures.common.paths import FIGURES, ROOT
from figures.common.tables import write_rows
from shmppo.config.checks import flags_with_values
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Collect, ComputeGradients
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.models.devices import check_device
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.parallel.shared_buffers import SharedBuffers, allocate
from shmppo.ppo.gae import compute_advantages
from shmppo.ppo.layout import run_fields
from shmppo.ppo.minibatches import build_minibatches

SMALL: dict[str, Any] = {
    "num_envs": 8, "rollout_steps": 64, "minibatches": 2, "epochs": 2, "seq_len": 16, "hidden_size": 64, "workers": 0,
    "entropy_coef": 0.01,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "lstm": {"env": "HalfCheetah-v5"},
    "gru, two layers": {"env": "CartPole-v1", "core": "gru", "num_layers": 2},
    "none": {"env": "Pendulum-v1", "core": "none"},
    "lmu": {"env": "CartPole-v1", "core": "lmu"},
    "lru": {"env": "CartPole-v1", "core": "lru"},
    "gtrxl": {"env": "CartPole-v1", "core": "gtrxl"},
    "squashed, separate critic": {"env": "HalfCheetah-v5", "squash_actions": True, "separate_critic": "all"},
    "beta, penalty": {"env": "Pendulum-v1", "distribution": "beta", "objective": "penalty"},
    "images": {"env": "figures.scaling.gpu_check:Spot"},
    "per dimension, value clip": {"env": "HalfCheetah-v5", "ratio": "per-dimension", "value_clip": True},
}
TOLERANCE = 1e-4
"""Largest difference of a gradient, relative to its largest number."""
UNCAPTURED, ACTING = "single operations", "acting on the device"
RUNS: dict[str, dict[str, Any]] = {
    "W = 4": {"workers": 4}, "W = 16": {"workers": 16}, UNCAPTURED: {"workers": 4},
    ACTING: {"workers": 3, "act_on": "device"}, f"{ACTING}, W = 7": {"workers": 7, "act_on": "device"},
}  # fmt: skip
PLAIN = """
import sys
from shmppo.ppo.device_update import DeviceUpdate
DeviceUpdate._run = lambda self, size: self._step(*self.compute_gradients(size))
from shmppo.cli import main
sys.exit(main())
"""
"""A program that trains without CUDA graphs."""


class Spot(gymnasium.Env[np.ndarray, int]):
    """An image with a spot, which the action moves; the reward is its height."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._row, self._steps = int(self.np_random.integers(36)), 0
        return self._image(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._row, self._steps = min(max(self._row + int(action) - 1, 0), 35), self._steps + 1
        return self._image(), self._row / 36, False, self._steps >= 40, {}

    def _image(self) -> np.ndarray:
        image = np.zeros((36, 36, 1), np.uint8)
        image[self._row] = 255
        return image


def gradient(config: TrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient and the terms of the first minibatch of a run."""
    task = inspect_task(config)
    fields = run_fields(config, task)
    buffers = SharedBuffers(fields, allocate(fields))
    learner = Learner(config, task, buffers)
    learner.publish_statistics(0)
    learner.set_rates(0)
    actions = ActionLog(config.rows, task.distribution.action_size, limit=100)
    pool = WorkerPool(config, task, buffers, actions, actions.mark_lost, Path())
    pool.start(learner.model)
    try:
        pool.execute(Collect(0))
        rollout, group = buffers.rollout, SINGLE_PROCESS
        advantages = compute_advantages(config, rollout, learner.reward_normalizer, group)
        build_minibatches(config, rollout, buffers.minibatches, iteration=0, advantages=advantages, process_group=group)
        pool.execute(ComputeGradients(0, 0))
    finally:
        pool.close()
    return buffers.shard_results.gradients[0].copy(), buffers.shard_results.loss_terms[0].copy()


def check_gradients(device: str) -> list[dict[str, Any]]:
    """Compare the gradients of small networks on the device with those on the CPU."""
    rows = []
    for name, changes in CASES.items():
        config = TrainConfig(**SMALL | changes)
        (expected, terms), (found, found_terms) = (
            gradient(dataclasses.replace(config, device=where)) for where in ("cpu:0", device)
        )
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        by_term = float(np.abs(found_terms - terms).max())
        passed = error < TOLERANCE and by_term < TOLERANCE * max(1.0, float(np.abs(terms).max()))
        rows.append({"check": f"gradient: {name}", "result": f"{error:.1e}", "passed": passed})
        print(rows[-1], flush=True)
    return rows


def check_hashes(device: str) -> list[dict[str, Any]]:
    """Compare runs of task A in processes of their own: other workers, without graphs, and resumed."""
    fields = TASK_A | {"device": device, "total_steps": 100_000, "stop_at_iteration": 4, "check_determinism": 0}
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        hashes: dict[str, str] = {}
        for name, changes in RUNS.items():
            start = ["-c", PLAIN] if name == UNCAPTURED else ["-m", "shmppo"]
            hashes[name] = trained([*start, "train"], Path(directory) / name, fields | changes)
        resumed = Path(directory) / "resumed"
        trained(["-m", "shmppo", "train"], resumed, fields | {"workers": 3, "stop_at_iteration": 2})
        arguments = ["-m", "shmppo", "train", "--resume", str(resumed), "--workers", "5", "--stop-at-iteration", "4"]
        hashes["resumed"] = finished([*arguments, "--quiet"], resumed)
        for name, found in hashes.items():
            expected = hashes[ACTING if ACTING in name else "W = 4"]
            passed = found == expected and found.endswith(" exact")
            rows.append({"check": f"hash: {name}", "result": found, "passed": passed})
            print(rows[-1], flush=True)
    return rows


def trained(start: list[str], run_dir: Path, fields: dict[str, Any]) -> str:
    """Train a new run. start: the program and its first arguments."""
    return finished([*start, "--quiet", *flags_with_values(fields | {"run_dir": str(run_dir)})], run_dir)


def finished(arguments: list[str], run_dir: Path) -> str:
    """Run a command; return the hash of the weights in its run directory, and whether they are exact."""
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)
    summary = json.loads((run_dir / "summary.json").read_text())
    exact = "not exact: " + "; ".join(summary["inexact_reasons"]) if summary["exact"] is False else "exact"
    return f"{summary['weights_sha256'][:16]} {exact}"


def main(device: str) -> None:
    """Carry out all checks, and write a row for each."""
    began = time.monotonic()
    check_device(TrainConfig(device=device))
    rows = check_gradients(device) + check_hashes(device)
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    note = f"{kind}, torch {torch.__version__}, {time.monotonic() - began:.0f} s."
    write_rows(FIGURES / "scaling" / "gpu_check.csv", rows, note)
    if not all(row["passed"] for row in rows):
        sys.exit("a check has failed")
