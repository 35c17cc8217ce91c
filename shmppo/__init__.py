"""Reproducible training of recurrent PPO policies, with worker processes and shared memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The package `shmppo.train` exists for `python -m shmppo.train`. Python binds it to the name `train` when it is first
# imported. It is imported here, before the function `train` is defined, so that it never replaces the function.
import shmppo.train  # noqa: F401
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, EnvError, RankError, ShmppoError, TrainingError, WorkerError
from shmppo.version import __version__

if TYPE_CHECKING:
    from shmppo.loggers.trackers import Callback, Logger
    from shmppo.runs.policy import Policy

# A library does not print. Log records go to the run's log file.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "ConfigError",
    "EnvError",
    "RankError",
    "ShmppoError",
    "TrainConfig",
    "TrainingError",
    "WorkerError",
    "__version__",
    "load_policy",
    "resume",
    "train",
]

# The functions import torch when they are called, so that `import shmppo` stays fast.


def train(config: TrainConfig, *, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> dict[str, Any]:
    """Train a policy until the configured number of steps, or until SIGINT, SIGTERM, or SIGUSR1.

    Args:
        config: the configuration of the run.
        callback: receives the metrics of each iteration. If it returns True, the run stops after that iteration.
        loggers: receive the same metrics (see `shmppo.loggers.trackers.Logger`).

    With several ranks, only rank 0 calls callback and loggers.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError: if the configuration cannot run. It is raised before any process starts.
        WorkerError, EnvError, TrainingError, RankError: if the run cannot continue. All its processes have ended.
    """
    from shmppo.runs import trainer

    return trainer.train(config, callback=callback, loggers=loggers)


def resume(
    run_dir: str | Path, *, callback: Callback | None = None, loggers: Sequence[Logger] = (), **changes: Any
) -> dict[str, Any]:
    """Continue a run from its newest checkpoint, in the same directory.

    Args:
        run_dir: the directory of the run.
        callback, loggers: see `train`.
        changes: fields of the configuration to change, for example total_steps or workers.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError: if there is no usable checkpoint, or if the run has finished.
        WorkerError, EnvError, TrainingError, RankError: see `train`.
    """
    from shmppo.runs import trainer

    return trainer.resume(run_dir, callback=callback, loggers=loggers, **changes)


def load_policy(run_dir: str | Path, *, seed: int = 0) -> Policy:
    """Load the policy from a run's newest checkpoint.

    Args:
        run_dir: the directory of the run.
        seed: seed of the actions that `act(…, deterministic=False)` samples.

    Raises:
        ConfigError: if the directory contains no usable checkpoint, or if its environment cannot be made.
    """
    from shmppo.runs import policy

    return policy.load_policy(run_dir, seed=seed)
