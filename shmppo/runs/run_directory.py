"""The directory of a run: its name and its files. A run writes only to this directory."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.utils import machine
from shmppo.utils.files import write_json

log = logging.getLogger(__name__)

CONFIG, METRICS, SUMMARY, LOG = "config.json", "metrics.csv", "summary.json", "run.log"
EVALUATIONS = "eval.csv"
FAILED_EPISODE, FAILED_MINIBATCH = "failed_episode.json", "failed_minibatch.pt"
_DERIVED = (
    "rank_steps", "batch_steps", "iterations", "last_iteration", "shards", "inference_rows", "block", "num_workers",
    "sharded", "sequence_steps",
)  # fmt: skip
"""Properties of TrainConfig that config.json records in addition to its fields."""


def create_run_directory(config: TrainConfig) -> Path:
    """Create the directory of a run and write config.json. Return the absolute path of the directory.

    Raises:
        ConfigError: if the directory cannot be written, or if it contains a run already.
    """
    name = config.run_dir or default_name(config)
    path = Path(name).absolute()
    if holds_run(path):
        raise ConfigError(
            f"--run-dir {path} holds a run already; name another directory, or resume the run with --resume"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / CONFIG, describe(config))
    except OSError as error:
        raise ConfigError(f"--run-dir {path} cannot be written: {error.strerror}; name another directory") from error
    return path


def holds_run(path: Path) -> bool:
    """Return whether a directory contains a run that can be resumed. It must have saved a checkpoint."""
    return (path / CONFIG).exists() and any(path.glob("checkpoint*.pt"))


def directory_of(run_dir: Path, rank: int) -> Path:
    """Return the directory of a rank: the run directory for rank 0, and a subdirectory for other ranks."""
    return run_dir if rank == 0 else run_dir / f"rank-{rank}"


def default_name(config: TrainConfig) -> str:
    """Return runs/<environment>-s<seed>-<time>. Characters that a file name should not contain become hyphens."""
    env = "".join(character if character.isalnum() or character in "-._" else "-" for character in config.env_id)
    return os.path.join("runs", f"{env}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}")


def describe(config: TrainConfig) -> dict[str, Any]:
    """Return the content of config.json: the resolved configuration, the versions, and the machine."""
    return {
        "config": config.to_json(),
        "derived": {name: getattr(config, name) for name in _DERIVED},
        "versions": machine.versions(),
        "processor": machine.processor(),
        "platform": sys.platform,
        "git_revision": machine.git_revision(),
    }
