"""A machine without enough shared memory for a run: refused in one sentence before anything starts."""

from __future__ import annotations

import os
import resource

import pytest
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.ppo.layout import run_fields
from shmppo.runs.preflight import allocate_shared


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm")
def test_too_little_shared_memory_is_refused() -> None:
    config = TrainConfig(num_envs=2**20, rollout_steps=2**20, workers=0)
    with pytest.raises(ConfigError, match=r"needs \d+\.\d MiB, which could not be allocated .*; lower --num-envs"):
        allocate_shared(run_fields(config, inspect_task(config)))


def test_shared_memory_that_cannot_be_allocated_is_refused_and_leaves_no_file() -> None:
    fields = run_fields(TrainConfig(), inspect_task(TrainConfig()))
    before = set(os.listdir("/dev/shm"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(
            ConfigError, match=r"shared memory: .* MiB, which could not be allocated \(.*File too large \(27\)"
        ):
            allocate_shared(fields)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(os.listdir("/dev/shm")) - before == set()


def test_another_default_device_is_refused() -> None:
    fields = run_fields(TrainConfig(), inspect_task(TrainConfig()))
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match=r"^torch.set_default_device.* is not supported"),
    ):
        allocate_shared(fields)
