"""Helpers to write files."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmppo.errors import ConfigError

log = logging.getLogger(__name__)


def make_parent_directory(path: Path, flag: str) -> None:
    """Make the parent directory of a file.

    Args:
        path: the file.
        flag: the flag that names the file, for the error message.

    Raises:
        ConfigError: if the directory cannot be made or is read-only.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error}; name another file") from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag} {path} cannot be written: {path.parent} is read-only; name another file")


@contextmanager
def warn_on_os_error() -> Iterator[None]:
    """Log an OSError of the body as a warning, so that a full disk does not end the run."""
    try:
        yield
    except OSError as error:
        log.warning("could not write a file: %s", error)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically: other processes see either the old or the new content."""
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)


def short_path(path: str | os.PathLike[str]) -> str:
    """Return the path relative to the current directory if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current directory was removed, or is on another drive
        return os.fspath(path)
    return min(relative, os.fspath(path), key=len)
