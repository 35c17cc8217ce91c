"""Files: written whole or not at all."""

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
    """Make the directory of a file that `flag` names. Raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error}; name another file") from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag} {path} cannot be written: {path.parent} is read-only; name another file")


@contextmanager
def warn_on_os_error() -> Iterator[None]:
    """A full disk costs the file that is written here, not the run."""
    try:
        yield
    except OSError as error:
        log.warning("not written: %s", error)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)
