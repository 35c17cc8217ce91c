"""Saving and loading what a run is, atomically and without code: tensors, numbers and text only."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

from shmppo.config import ConfigError

FORMAT = 1
NAME = "checkpoint.pt"
BEFORE = "checkpoint-before.pt"  # for when the newest is torn

log = logging.getLogger("shmppo.checkpoint")


def save_checkpoint(run_dir: Path, state: dict[str, Any]) -> None:
    """Write `state` as the newest checkpoint; the one before is kept. At no moment is there none that is whole.

    Raises:
        OSError: if it cannot be written; what was there is untouched.
    """
    path = run_dir / NAME
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch's writer hides the system's error
        raise OSError(f"{temporary}: {error}") from error
    if path.exists():
        os.replace(path, run_dir / BEFORE)
    os.replace(temporary, path)
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load_newest_checkpoint(run_dir: Path) -> dict[str, Any]:
    """The newest checkpoint of a run that is whole.

    Raises:
        ConfigError: if there is none.
    """
    try:
        return load_checkpoint(run_dir / NAME)
    except ConfigError as error:
        if not (run_dir / BEFORE).is_file():
            raise
        log.warning("%s; going back to the one before", error)
        return load_checkpoint(run_dir / BEFORE)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed.

    Raises:
        ConfigError: if it is missing, damaged, or of another format.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; the run has saved no checkpoint yet")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for damaged files
        raise ConfigError(f"{path} is damaged or not a checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ConfigError(f"{path} is not of checkpoint format {FORMAT}; use the version of shmppo that wrote it")
    return state
