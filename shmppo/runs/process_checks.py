"""Checks of the process that calls `train` or `resume`: some processes cannot train, or cannot start workers."""

from __future__ import annotations

import multiprocessing
import os

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError

_trained_in: int | None = None  # id of the process that has trained; a forked process inherits it


def refuse_forked_process() -> None:
    """Refuse to train in a process that was forked after `train` or `resume` was called in its parent.

    A fork copies no threads. Torch would wait forever for the threads of the parent, and the copied fork server belongs
    to the parent.

    Raises:
        ConfigError: in such a process.
    """
    global _trained_in
    if _trained_in not in (None, os.getpid()):
        raise ConfigError(
            "`train` or `resume` was called in the parent process before it forked this one, and the threads of torch "
            'do not survive a fork; start this process with multiprocessing.get_context("spawn")'
        )
    _trained_in = os.getpid()


def refuse_daemonic_process(config: TrainConfig) -> None:
    """Refuse a run that needs other processes in a daemonic process of multiprocessing, which may not start any.

    Raises:
        ConfigError: if the run needs workers or an evaluator.
    """
    if multiprocessing.current_process().daemon and (config.num_workers or config.eval_every is not None):
        raise ConfigError(
            "this process is daemonic, so it may not start workers or evaluations; start it with daemon=False, or use "
            "--workers 0 without --eval-every"
        )
