"""A machine without enough shared memory or open files for a run: refused in one sentence before anything starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import fields_of

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.runs import preflight
from shmppo.runs.preflight import allocate_shared, check_resources


def check(config: TrainConfig) -> None:
    check_resources(config, fields_of(config, inspect_task(config)))


def test_too_little_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(preflight.os, "statvfs", lambda path: Full)
    monkeypatch.setattr(preflight, "SHARED_MEMORY", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs .* MiB but .* has 0\.0 MiB free; lower --num-envs"):
        check(TrainConfig())


@pytest.fixture
def open_files() -> Iterator[tuple[int, int]]:
    """The limits of open files, which the test may change."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_limit_of_open_files_is_raised_as_far_as_allowed(
    open_files: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(workers=40, num_envs=64)
    _, hard = open_files
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    check(config)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64 + 6 * 40
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 300))
    with pytest.raises(ConfigError, match=r"open files: 40 workers need about 304 descriptors but the limit is 300"):
        check(config)


def test_shared_memory_that_cannot_be_allocated_is_refused_and_leaves_no_file() -> None:
    fields = fields_of(TrainConfig(), inspect_task(TrainConfig()))
    before = set(os.listdir("/dev/shm"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(
            ConfigError, match=r"shared memory: .* MiB could not be allocated \(.*File too large \(27\)"
        ):
            allocate_shared(fields)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(os.listdir("/dev/shm")) - before == set()
