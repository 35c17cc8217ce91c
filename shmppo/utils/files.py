"""Helpers to write files."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shmppo.errors import ConfigError, SaveError, print_warning

log = logging.getLogger(__name__)


def user_path(path: str | os.PathLike[str], where: str) -> Path:
    """Return a path with the home directory in place of `~` or `~user`.

    Args:
        path: the path.
        where: beginning of the error message, for example the flag.

    Raises:
        ConfigError: if the user does not exist or has no home directory, or if the path is too long or
            its links form a loop.
    """
    try:
        expanded = Path(path).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            expanded.stat()
    except RuntimeError as error:
        raise ConfigError(
            f"{where} {os.fspath(path)} begins with a user without a home directory; write the whole path"
        ) from error
    except OSError as error:
        raise ConfigError(f"{where} {os.fspath(path)} cannot be used: {error.strerror}; use another path") from error
    return expanded


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
    """Log an OSError of the body as a warning, so that a full disk does not hide the error that ends the run."""
    try:
        yield
    except OSError as error:
        log.warning("could not write a file: %s", error)


class FailedWrites:
    """The files of a run that could not be written, and why.

    The first failure is a warning, and so is the moment at which all files can be written again. Both are printed to
    stderr as well, because the log is usually on the same disk.
    """

    def __init__(self) -> None:
        self._errors: dict[str, OSError] = {}
        self._lost: dict[str, OSError] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._errors

    def failed(self, name: str, error: OSError, consequence: str = "") -> None:
        """Record that a file could not be written.

        Args:
            name: of the file in the run directory.
            error: the reason.
            consequence: what this means, for the log.
        """
        if name not in self._errors:
            log.warning("%s: %s", consequence or f"{name} cannot be written now", error)
        if not self._errors:
            print_warning(
                f"{name} cannot be written ({_reason(error)}); the run continues, and tries to write its files again"
            )
        self._errors[name] = error

    def lost(self, name: str, error: OSError) -> None:
        """Record that a file cannot be written later, because only its iteration has the content.

        Args:
            name: of the file in the run directory.
            error: the reason.
        """
        log.warning("%s is lost: %s", name, error)
        self._lost[name] = error

    def succeeded(self, name: str) -> None:
        """Record that a file was written."""
        self._lost.pop(name, None)
        if self._errors.pop(name, None) is not None and not self._errors:
            log.warning("all files of the run can be written again")
            print_warning("all files of the run can be written again")

    @contextmanager
    def recorded(self, name: str) -> Iterator[None]:
        """Record whether the body writes a file. An OSError does not end the run."""
        try:
            yield
        except OSError as error:
            self.failed(name, error)
        else:
            self.succeeded(name)

    def check(self, run_dir: Path, summary: dict[str, Any]) -> None:
        """Raise SaveError if the files of a finished run are not complete.

        Args:
            run_dir: directory of the run, for the message.
            summary: content of summary.json.
        """
        missing = self._errors | self._lost
        if missing:
            names, reason = ", ".join(missing), _reason(next(iter(missing.values())))
            raise SaveError(
                f"{names} of {short_path(run_dir)} could not be written ({reason}); make space there, and repeat what "
                "is missing with --resume from the last checkpoint",
                summary,
            )


def _reason(error: OSError) -> str:
    """Describe an error without the name of the file."""
    return error.strerror or str(error)


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Give the name of a temporary file. At the end, rename it to `path`; after an error, remove it."""
    temporary = path.with_suffix(".partial")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically: other processes see either the old or the new content.

    Raises:
        OSError: if it cannot be written. The incomplete file is removed.
    """
    with replaced_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path below the current directory relative to it, and any other path as it is."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current directory was removed, or is on another drive
        return os.fspath(path)
    return os.fspath(path) if relative.startswith(os.pardir) else relative
