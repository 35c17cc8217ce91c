"""Paths that users give, and files that are read and written whole."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shmppo.errors import ConfigError


def user_path(path: str | os.PathLike[str], where: str) -> Path:
    """Return an absolute path, with the home directory in place of `~` or `~user`.

    It is absolute because the code of the user may change the working directory.

    Args:
        path: the path.
        where: beginning of the error message, for example the flag.

    Raises:
        ConfigError: if the user does not exist or has no home directory.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"{where} {os.fspath(path)} begins with a user without a home directory; write the whole path"
        ) from error


def make_parent_directory(path: Path, flag: str) -> None:
    """Make the parent directory of a file, and check that it can contain new files.

    Args:
        path: the file.
        flag: the flag that names the file, for the error message.

    Raises:
        ConfigError: if the directory cannot be made, if no file can be made in it, or if the file is a directory or has
            too long a name.
    """
    try:
        if path.is_dir():
            raise ConfigError(f"{flag} {path} is a directory; name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()  # /proc and /sys let root write, but contain no new files
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error}; name another file") from error


def sync(path: Path) -> None:
    """Wait until the content of a file or a directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems do not support it for directories
            raise
    finally:
        os.close(descriptor)


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Give the name of a temporary file. At the end, sync it and rename it to `path`; after an error, remove it."""
    temporary = path.with_name(path.name + ".partial")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """Read a file that contains a JSON object.

    Args:
        path: the file.
        advice: what to do if it is damaged, for the error message.

    Raises:
        ConfigError: if the file cannot be read, or contains no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it contains no object")
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} is damaged ({reason}); {advice}") from error
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically: other processes see either the old or the new content.

    Raises:
        OSError: if it cannot be written. The incomplete file is removed.
    """
    with replaced_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def complete_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file with a header. A last line that was written only in part is left out.

    Raises:
        OSError, ValueError, csv.Error: if the file cannot be read, or is damaged.
    """
    with open(path, newline="", encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n")]
    return list(csv.DictReader(lines))


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path below the current directory relative to it, and any other path as it is."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current directory was removed, or is on another drive
        return os.fspath(path)
    return os.fspath(path) if relative.startswith(os.pardir) else relative
