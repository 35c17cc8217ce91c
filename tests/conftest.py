"""Shared parts of the tests: fixtures, rollouts of small runs, and the check that a test ends all its processes."""

from __future__ import annotations

import shmppo  # before NumPy, see shmppo.utils.portable

# isort: split
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from public_helpers import (  # noqa: F401 (pytest finds fixtures here, and tests import the rest from here)
    TESTS,
    _nothing_left_behind,
    background_check,
    environments_importable,
    run_command,
    summary_of,
    worker_processes,
)

import shmppo.kernels
from shmppo.config import trust
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import Task
from shmppo.kernels import kernels, supported_variants
from shmppo.parallel.shared_buffers import SharedBuffers, allocate, run_fields
from shmppo.ppo.learner import Learner
from shmppo.runs.trainer import resume, train
from shmppo.sampling.pool import Pool
from shmppo.sampling.worker import ActionLog

torch.set_num_threads(1)  # faster for small tensors
trust.SAFE_MODULES += (
    "environments", "networks", "schedules", "space_environments", "vector_environments", "hidden_state",
    "agent_environments", "faulty_environments", "mpe2.simple_spread_v3", "pettingzoo.sisl.pursuit_v5",
    "pettingzoo.classic.tictactoe_v3",
)  # fmt: skip
"""Most tests resume their own runs. Those of --trust use other modules, and commands that tests start name modules."""


@pytest.fixture(autouse=True)
def _no_background_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save each run in this process the two interpreters of the check. Commands that tests start do check."""
    if "background_check" not in request.fixturenames:
        monkeypatch.setattr("shmppo.runs.background_check.BackgroundCheck.start", lambda check: None)


def published(config: TrainConfig, task: Task) -> tuple[SharedBuffers, Learner]:
    """Shared buffers, and a learner that has begun iteration 0."""
    fields = run_fields(config, task)
    buffers = SharedBuffers(fields, allocate(fields))
    learner = Learner(config, task, buffers)
    learner.begin(0)
    return buffers, learner


def sampled(config: TrainConfig, rollouts: int = 1) -> tuple[SharedBuffers, Learner, Pool]:
    """The last rollout in the shared buffers, by a policy that has not learned yet, and the pool that collected it."""
    task = inspect_task(config)
    buffers, learner = published(config, task)
    actions = ActionLog(config.rows, task.distribution.action_size, limit=100)
    pool = Pool(config, task, buffers, actions, actions.forget)
    pool.start(learner.model)
    for iteration in range(rollouts):
        pool.collect(iteration)
    pool.close()
    return buffers, learner, pool


def planned(buffers: SharedBuffers, learner: Learner) -> np.ndarray:
    """Build the minibatches of an update from the rollout in the buffers; returns the advantages [T, N]."""
    advantages = learner.advantages(buffers.rollout)
    learner.minibatches(buffers.rollout, advantages)
    return advantages


def assert_no_bit_changes(config: TrainConfig, root: Path, *, stop: int = 3) -> None:
    """Assert that workers, the learning mode, and a stop at iteration `stop` do not change the weights.

    The runs' directories in `root` are 0-central, 2-central, 3-sharded and stopped (1 worker, then resumed with 3).
    """
    hashes = {}
    for workers, learning in ((0, "central"), (2, "central"), (3, "sharded")):
        name = f"{workers}-{learning}"
        changed = dataclasses.replace(config, workers=workers, learning=learning, run_dir=str(root / name))  # type: ignore[arg-type]
        summary = train(changed)
        assert summary["exact"]
        hashes[name] = summary["weights_sha256"]
    stopped = dataclasses.replace(config, workers=1, learning="sharded", run_dir=str(root / "stopped"))
    train(dataclasses.replace(stopped, stop_at_iteration=stop))
    hashes["resumed"] = resume(root / "stopped", workers=3)["weights_sha256"]
    assert len(set(hashes.values())) == 1, hashes


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of this test session have in common."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As if the installation had no compiler, in this process."""

    def forget() -> None:
        supported_variants.cache_clear()
        kernels.cache_clear()

    with monkeypatch.context() as patch:
        patch.setattr(shmppo.kernels, "_library_path", lambda: None)
        forget()
        yield patch
    forget()
