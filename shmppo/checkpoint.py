"""Saving and loading what a run is, atomically and without code: tensors, numbers and text only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from shmppo.config import ConfigError

FORMAT = 1
NAME = "checkpoint.pt"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` so that `path` holds either the old checkpoint or the whole new one, never a part.

    Raises:
        OSError: if it cannot be written; the old checkpoint is untouched.
    """
    temporary = path.with_suffix(".partial")
    with open(temporary, "wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
