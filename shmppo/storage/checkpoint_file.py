"""The file of a checkpoint: a line that names it, the SHA-256 of its content, and the content as torch saves it.

Every change of a byte is detected. Reading executes no code.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from shmppo.config.checks import require
from shmppo.errors import ConfigError
from shmppo.utils.files import read_file

FORMAT = 1
_MAGIC = b"shmppo checkpoint\n"


class DamagedCheckpointError(ConfigError):
    """A file that is not what `write_checkpoint` has written. The message says why, but not what to do."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint. state: tensors, numbers, and text.

    Raises:
        OSError: if the file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    content = buffer.getbuffer()
    with open(path, "wb") as file:
        file.write(_header(content))
        file.write(content)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without executing code from it.

    Raises:
        DamagedCheckpointError: if it does not exist, is damaged, or is no checkpoint.
        ConfigError: if it has another format.
    """
    try:
        state = _content(path)
    except Exception as error:  # torch raises many types
        reason = str(error) if isinstance(error, (ValueError, OSError)) else type(error).__name__
        raise DamagedCheckpointError(f"{path} is damaged or not a checkpoint ({reason})") from error
    require(
        state["format"] == FORMAT,
        f"{path} has checkpoint format {state['format']}, but this version reads format {FORMAT}; use the version of "
        f"shmppo that wrote it ({state.get('fingerprint', {}).get('shmppo', 'unknown')})",
    )
    return state


def _header(content: memoryview) -> bytes:
    return _MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _content(path: Path) -> dict[str, Any]:
    """Read a file, and check its SHA-256."""
    data = memoryview(read_file(path))
    begin = len(_header(data[:0]))
    if data[:begin] != _header(data[begin:]):
        raise ValueError("its SHA-256 differs")
    state: dict[str, Any] = torch.load(io.BytesIO(data[begin:]), map_location="cpu", weights_only=True)
    return state
