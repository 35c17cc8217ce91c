"""A machine that cannot hold a run: said in one sentence before anything starts."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.errors import ConfigError
from shmppo.parallel.shared_buffers import Field
from shmppo.ppo.learner import arena_fields
from shmppo.runs import preflight as resources
from shmppo.runs.preflight import available_memory, check_resources


def fields_of(config: TrainConfig) -> tuple[Field, ...]:
    return arena_fields(config, inspect_task(config))


def test_not_enough_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(resources.os, "statvfs", lambda path: Full)
    monkeypatch.setattr(resources, "SHARED_MEMORY", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs .* MiB but .* has 0\.0 MiB free; lower --num-envs"):
        check_resources(TrainConfig(), fields_of(TrainConfig()))


def test_not_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(workers=8)
    monkeypatch.setattr(resources, "available_memory", lambda: 64 << 20)
    with pytest.raises(ConfigError, match=r"memory: this run needs at least \d+ MiB .* of 8 workers.* 64 MiB are"):
        check_resources(config, fields_of(config))


def test_the_available_memory_is_known_here() -> None:
    available = available_memory()
    assert available is not None
    assert 2**20 < available < 2**50


@pytest.fixture
def open_files() -> Iterator[tuple[int, int]]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_limit_of_open_files_is_raised_as_far_as_allowed(
    open_files: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(workers=40, num_envs=64)
    _, hard = open_files
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    check_resources(config, fields_of(config))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64 + 6 * 40
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 300))
    with pytest.raises(ConfigError, match=r"open files: 40 workers need about 304 descriptors but the limit is 300"):
        check_resources(config, fields_of(config))
