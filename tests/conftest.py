"""Shared pieces of the tests: small configurations, and the rule that a test leaves no process behind."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.envs.spec import Task
from shmppo.parallel.shared_buffers import SharedBuffers, allocate
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.learner import Learner, arena_fields
from shmppo.runs.trainer import resume, train
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.worker_pool import InProcessPool
from shmppo.utils.phase_timer import PhaseTimer

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


def summary_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def published(config: TrainConfig, task: Task) -> tuple[SharedBuffers, Learner]:
    """An arena and a learner that has published its first weights and statistics."""
    fields = arena_fields(config, task)
    arena = SharedBuffers(fields, allocate(fields))
    learner = Learner(config, task, arena)
    learner.publish_statistics()
    learner.publish()
    return arena, learner


def sampled(config: TrainConfig) -> tuple[SharedBuffers, Learner, ShardGradients]:
    """One rollout in the arena, by a policy that has not learned yet."""
    task = inspect_task(config)
    arena, learner = published(config, task)
    actions = ActionLog(config.num_envs, task.distribution.action_size, limit=100)
    pool = InProcessPool(config, task, learner.model, arena, actions)
    pool.collect(learner.version, 0, PhaseTimer())
    pool.close()
    return arena, learner, ShardGradients(config, task.distribution, learner.model, arena)


def assert_no_bit_changes(config: TrainConfig, root: Path, *, stop: int = 3) -> None:
    """Workers, the learning mode, and a stop at iteration `stop` leave the weights as they are.

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
