"""A machine without enough shared memory for a run: refused in one sentence before anything starts."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.ppo.layout import run_fields
from shmppo.runs import preflight
from shmppo.runs.preflight import allocate_shared, check_shared_memory


def check(config: TrainConfig) -> None:
    check_shared_memory(run_fields(config, inspect_task(config)))


def test_too_little_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(preflight.os, "statvfs", lambda path: Full)
    monkeypatch.setattr(preflight, "SHARED_MEMORY", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs .* MiB but .* has 0\.0 MiB free; lower --num-envs"):
        check(TrainConfig())


def test_shared_memory_that_cannot_be_allocated_is_refused_and_leaves_no_file() -> None:
    fields = run_fields(TrainConfig(), inspect_task(TrainConfig()))
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
