"""Shared parts of the tests: fixtures, rollouts of small runs, and the check that a test ends all its processes."""

from __future__ import annotations

import shmppo  # before NumPy, see shmppo.utils.portable

# isort: split
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from shmppo.envs.spec import EnvSpec
from shmppo.kernels import kernels, supported_variants
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Collect
from shmppo.lockstep.worker_pool import WorkerPool
from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.parallel.shared_buffers import SharedBuffers, allocate
from shmppo.ppo.gae import compute_advantages
from shmppo.ppo.layout import run_fields
from shmppo.ppo.minibatches import build_minibatches

torch.set_num_threads(1)  # faster for small tensors
trust.SAFE_MODULES += (
    "environments", "networks", "schedules", "space_environments", "vector_environments", "hidden_state",
    "agent_environments", "faulty_environments", "mpe2.simple_spread_v3", "pettingzoo.sisl.pursuit_v5",
    "pettingzoo.classic.tictactoe_v3", "mujoco_tasks",
)  # fmt: skip
"""Most tests resume their own runs. Those of --trust use other modules, and commands that tests start name modules."""


@pytest.fixture(autouse=True)
def _no_background_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save each run in this process the two interpreters of the check. Commands that tests start do check."""
    if "background_check" not in request.fixturenames:
        monkeypatch.setattr("shmppo.runs.background_check.BackgroundCheck.start", lambda check: None)


@pytest.fixture(autouse=True)
def _no_remembered_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process know of no check that has passed before."""
    if "remembered_checks" not in request.fixturenames:
        monkeypatch.setattr("shmppo.envs.determinism_check._note", lambda *_: Path(os.devnull, "note"))


@pytest.fixture
def remembered_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember checks that have passed, in a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shmppo" / "checks"


@pytest.fixture(autouse=True)
def _no_named_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test trust no module because another test has named it in this process."""
    monkeypatch.setattr("shmppo.config.trust._named", set())


def published(config: TrainConfig, task: EnvSpec) -> tuple[SharedBuffers, Learner]:
    """Shared buffers, and a learner that has published for iteration 0."""
    fields = run_fields(config, task)
    buffers = SharedBuffers(fields, allocate(fields))
    learner = Learner(config, task, buffers)
    learner.publish_statistics(0)
    learner.set_rates(0)
    return buffers, learner


def sampled(config: TrainConfig, rollouts: int = 1) -> tuple[SharedBuffers, Learner, WorkerPool]:
    """The last rollout in the shared buffers, by a policy that has not learned yet, and the pool that collected it."""
    task = inspect_task(config)
    buffers, learner = published(config, task)
    actions = ActionLog(config.rows, task.distribution.action_size, limit=100)
    pool = WorkerPool(dataclasses.replace(config, workers=0), task, buffers, actions, actions.mark_lost, Path())
    pool.start(learner.model)
    for iteration in range(rollouts):
        pool.execute(Collect(iteration))
    pool.close()
    return buffers, learner, pool


def planned(buffers: SharedBuffers, learner: Learner) -> np.ndarray:
    """Build the minibatches of iteration 0 from the rollout in the buffers; returns the advantages [T, N]."""
    config, rollout, group = learner.config, buffers.rollout, SINGLE_PROCESS
    advantages = compute_advantages(config, rollout, learner.reward_normalizer, group)
    build_minibatches(config, rollout, buffers.minibatches, iteration=0, advantages=advantages, process_group=group)
    return advantages


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole files, so that it trains the runs of their fixtures once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log) if config.option.dist == "load" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with whole runs, which take longest, so that all processes end at about the same time."""
    items.sort(key=lambda item: "system" not in item.path.parts)


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
