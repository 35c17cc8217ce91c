"""Shared parts of the tests: fixtures, rollouts of small runs, and the check that a test ends all its processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import Task
from shmppo.parallel.shared_buffers import Field, SharedBuffers, allocate, run_fields
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.learner import Learner
from shmppo.ppo.minibatches import build_minibatches
from shmppo.runs.trainer import resume, train
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.pool import InProcessPool
from shmppo.utils.phase_timer import PhaseTimer

TESTS = Path(__file__).parent
HELPERS = ("forkserver", "resource_tracker", "semaphore_tracker")
"""multiprocessing's own helpers: they live as long as this process and end with it."""


def worker_processes() -> list[psutil.Process]:
    """Descendants of this process that are not multiprocessing's own helpers."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            helper = any(name in command for name in HELPERS) and process.ppid() == psutil.Process().pid
        except psutil.Error:
            continue
        if not helper:
            found.append(process)
    return found


@pytest.fixture(autouse=True, scope="session")
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key that signs run directories out of the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def background_check() -> None:
    """Let runs in this process check their environment (--check-determinism)."""


@pytest.fixture(autouse=True)
def _no_background_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save each run in this process the two interpreters of the check. Commands that tests start do check."""
    if "background_check" not in request.fixturenames:
        monkeypatch.setattr("shmppo.runs.background_check.BackgroundCheck.start", lambda check: None)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    _, alive = psutil.wait_procs(worker_processes(), timeout=5)
    assert not alive, f"left running: {[p.cmdline() for p in alive]}"


@pytest.fixture
def run_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m MODULE …` in an empty working directory, as a user would."""
    (tmp_path / "cwd").mkdir()

    def run(module: str, *args: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, args)],
            cwd=tmp_path / "cwd",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def environments_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that a test starts import `environments`."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def published(config: TrainConfig, task: Task) -> tuple[SharedBuffers, Learner]:
    """Shared buffers, and a learner that has published its first weights and statistics."""
    fields = fields_of(config, task)
    buffers = SharedBuffers(fields, allocate(fields))
    learner = Learner(config, task, buffers)
    learner.publish_statistics()
    learner.publish()
    return buffers, learner


def fields_of(config: TrainConfig, task: Task) -> tuple[Field, ...]:
    """The layout table of the shared memory of a run."""
    return run_fields(config, task.observation, task.distribution, task.snapshot.bytes if task.snapshot else 0)


def sampled(config: TrainConfig) -> tuple[SharedBuffers, Learner, ShardGradients]:
    """One rollout in the shared buffers, by a policy that has not learned yet."""
    task = inspect_task(config)
    buffers, learner = published(config, task)
    actions = ActionLog(config.num_envs, task.distribution.action_size, limit=100)
    pool = InProcessPool(config, task, learner.model, buffers, actions)
    pool.collect(learner.version, 0, PhaseTimer())
    pool.close()
    return buffers, learner, ShardGradients(config, task.distribution, learner.model, buffers)


def planned(config: TrainConfig, buffers: SharedBuffers, learner: Learner, iteration: int = 0) -> np.ndarray:
    """Build the minibatches of an update from the rollout in the buffers; returns the advantages [T, N]."""
    advantages = learner.advantages(buffers.rollout)
    build_minibatches(
        config,
        buffers.rollout,
        buffers.minibatches,
        iteration=iteration,
        advantages=advantages,
        coefficients=learner.schedule.coefficients(iteration),
    )
    return advantages


class LocalGradients:
    """A source of gradients that computes every shard in this process."""

    def __init__(self, config: TrainConfig, gradients: ShardGradients) -> None:
        self._shards, self._gradients = range(config.shards), gradients

    def compute(self, version: int, epoch: int, minibatch: int, timer: PhaseTimer) -> float:
        self._gradients.compute(epoch, minibatch, self._shards)
        return 0.0

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        raise NotImplementedError


def assert_no_bit_changes(config: TrainConfig, root: Path, *, stop: int = 3) -> None:
    """Assert that workers, the learning mode, and a stop at iteration `stop` do not change the weights.

    The runs' directories in `root` are 0-central, 1-sharded, 2-central, 3-sharded and stopped (then resumed).
    """
    hashes = {}
    for workers, learning in ((0, "central"), (1, "sharded"), (2, "central"), (3, "sharded")):
        name = f"{workers}-{learning}"
        changed = dataclasses.replace(config, workers=workers, learning=learning, run_dir=str(root / name))  # type: ignore[arg-type]
        summary = train(changed)
        assert summary["exact"]
        hashes[name] = summary["weights_sha256"]
    train(dataclasses.replace(config, workers=2, stop_at_iteration=stop, run_dir=str(root / "stopped")))
    hashes["resumed"] = resume(root / "stopped", workers=3)["weights_sha256"]
    assert len(set(hashes.values())) == 1, hashes
