"""The file of a checkpoint: a line that names it, the SHA-256 of its content, and the content as torch saves it.

Every change of a byte is detected. Reading executes no code.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shmppo.errors import ConfigError

FORMAT = 7
KEYS: dict[str, type | tuple[type, ...]] = {
    "config": str, "config_digest": str, "fingerprint": dict, "inexact_reasons": list, "iteration": int,
    "env_steps": int, "learner": dict, "carry": dict, "actions": dict, "episodes": dict, "seconds": torch.Tensor,
    "sync_seconds": (int, float), "best_return": (int, float), "failed_episodes": int,
}  # fmt: skip
"""Keys that a run needs to resume, and the types of their values."""
LEARNER_KEYS: dict[str, type | tuple[type, ...]] = {
    "model": dict, "optimizer": dict, "schedule": dict, "obs_moments": dict, "return_moments": dict,
    "discounted_return": torch.Tensor,
}  # fmt: skip
_MAGIC = b"shmppo checkpoint\n"
_DIGEST = 64  # characters of a SHA-256


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, and flush it to the disk. state: tensors, numbers, and text.

    Raises:
        OSError: if the file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    content = buffer.getbuffer()
    with open(path, "wb") as file:
        file.write(_MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without executing code from it.

    Raises:
        ConfigError: if it does not exist, is damaged, or has another format.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the directory of a run, or a checkpoint file")
    try:
        state = _content(path)
    except Exception as error:  # torch raises many types for damaged files
        raise ConfigError(
            f"{path} is damaged or not a checkpoint ({_reason(error)}); name a directory with an undamaged one"
        ) from error
    if not isinstance(state, dict) or "format" not in state:
        raise ConfigError(f"{path} is not a checkpoint of shmppo; name the directory of a run")
    if state["format"] != FORMAT:
        raise ConfigError(
            f"{path} has checkpoint format {state['format']}, but this version reads format {FORMAT}; "
            f"use the version of shmppo that wrote it ({state.get('fingerprint', {}).get('shmppo', 'unknown')})"
        )
    return state


def check_keys(state: Mapping[str, Any], where: Path) -> None:
    """Check that a checkpoint has everything that a run needs to resume.

    Args:
        state: content of the checkpoint.
        where: the checkpoint or its run directory, for the error message.

    Raises:
        ConfigError: if a key is missing, or if a value has another type.
    """
    learner = state.get("learner")
    parts: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [("", state, KEYS)]
    if isinstance(learner, dict):
        parts.append(("learner.", learner, LEARNER_KEYS))
    for prefix, part, keys in parts:
        for name, kind in keys.items():
            if not isinstance(part.get(name), kind):
                problem = f"has a {prefix}{name} of another type" if name in part else f"lacks {prefix}{name}"
                raise ConfigError(f"the checkpoint of {where} {problem}; use another checkpoint (--checkpoint)")


def _content(path: Path) -> Any:
    """Read a file, and check its SHA-256. Files of format 3 and before have none."""
    data = memoryview(path.read_bytes())
    if data[: len(_MAGIC)] == _MAGIC:
        begin = len(_MAGIC) + _DIGEST + 1
        header = bytes(data[:begin])
        data = data[begin:]
        if header != _MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n":
            raise ValueError("its SHA-256 differs")
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if data.nbytes == path.stat().st_size and isinstance(state, dict) and state.get("format", 0) >= FORMAT:
        raise ValueError("its SHA-256 is missing")
    return state


def _reason(error: Exception) -> str:
    """Describe why a file cannot be read."""
    return str(error) if isinstance(error, (ValueError, OSError)) else type(error).__name__
