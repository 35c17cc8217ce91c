"""Paths that users give, the files of a run directory, and files that are read and written whole."""

from __future__ import annotations

import csv
import errno
import json
import os
import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from shmppo.errors import ConfigError

LINKS_ALLOWED = "wandb"
"""Directory of a run in which Weights & Biases makes symbolic links of its own."""


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


@contextmanager
def config_error_if_unwritable(
    where: object, advice: str = "make space there, or name another directory"
) -> Iterator[None]:
    """Raise a ConfigError for an OSError of the body, which writes files.

    Args:
        where: beginning of the error message: the file or directory, or its flag and its name.
        advice: end of the error message.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{where} cannot be written: {error.strerror or error}; {advice}") from error


def make_parent_directory(path: Path, flag: str) -> None:
    """Make the parent directory of a file, and check that it can contain new files.

    Args:
        path: the file.
        flag: the flag that names the file, for the error message.

    Raises:
        ConfigError: if the directory cannot be made, if no file can be made in it, or if the file is a directory or has
            too long a name.
    """
    with config_error_if_unwritable(f"{flag} {path}", "name another file"):
        if path.is_dir():
            raise ConfigError(f"{flag} {path} is a directory; name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()  # /proc and /sys let root write, but contain no new files


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


def refuse_links(directory: Path) -> None:
    """Check that a run directory leads nowhere else. Call this before anything in it is read or written.

    Only regular files and directories are allowed, and all names of a file must be in the directory. The directory
    itself may be reached through a link, and it may be missing.

    Raises:
        ConfigError: if it contains a symbolic link, a hard link to a file with another name, a FIFO, a socket, or a
            device.
        OSError: if a part of it cannot be listed.
    """
    try:
        for path, kind in _links(directory):
            raise ConfigError(
                f"{path} is {kind}, and a run directory must not lead elsewhere; put a copy of the file in its place, "
                "or remove it"
            )
    except RecursionError as error:
        raise ConfigError(f"{directory} has too many directories inside each other; remove them") from error


def _links(directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield what `refuse_links` refuses, and what it is. A run that is training may remove files meanwhile."""
    names: defaultdict[tuple[int, int], list[Path]] = defaultdict(list)
    for folder, folders, files in os.walk(directory, onerror=_raise):
        for path in (Path(folder, name) for name in [*folders, *files]):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    names[status.st_dev, status.st_ino].append(path)
                elif not stat.S_ISDIR(status.st_mode):
                    yield path, "a symbolic link" if path.is_symlink() else "a FIFO, a socket, or a device"
        folders[:] = [name for name in folders if Path(folder, name) != directory / LINKS_ALLOWED]
    for paths in names.values():
        with suppress(FileNotFoundError):
            if paths[0].lstat().st_nlink > len(paths):
                yield paths[0], "a hard link to a file with another name"


def _raise(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def is_run(directory: Path) -> bool:
    """Whether a directory is that of a run or of an exported policy."""
    return os.path.lexists(directory / "config.json") and os.path.lexists(directory / "metrics.csv")


def open_file(path: Path, mode: str = "rb", **options: Any) -> IO[Any]:
    """Open a file of a run as `open` does. Links are not followed, and FIFOs, sockets, and devices are refused.

    Raises:
        OSError: also if it is no regular file.
    """
    return open(path, mode, opener=_open_regular, **options)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return descriptor


def read_file(path: Path) -> bytes:
    """Read a file of a run (see `open_file`)."""
    with open_file(path) as file:
        return bytes(file.read())


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Give the name of a new, empty file. At the end, sync it and rename it to `path`; after an error, remove it."""
    temporary = path.with_name(path.name + ".partial")
    try:
        temporary.unlink(missing_ok=True)
        open_file(temporary, "xb").close()
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: other processes see either the old or the new content.

    Raises:
        OSError: if it cannot be written. The incomplete file is removed.
    """
    with replaced_file(path) as temporary:
        temporary.write_bytes(content)


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """Read a file that contains a JSON object.

    Args:
        path: the file.
        advice: what to do if it is damaged, for the error message.

    Raises:
        ConfigError: if the file cannot be read, or contains no object.
    """
    try:
        content = json.loads(read_file(path))
        if not isinstance(content, dict):
            raise ValueError("it contains no object")
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} is damaged ({reason}); {advice}") from error
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file (see `write_file`)."""
    write_file(path, f"{json.dumps(content, indent=2)}\n".encode())


def complete_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file with a header. A last line that was written only in part is left out.

    Raises:
        OSError, ValueError, csv.Error: if the file cannot be read, or is damaged.
    """
    with open_file(path, "r", newline="", encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n")]
    return list(csv.DictReader(lines))


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path below the current directory relative to it, and any other path as it is."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current directory was removed, or is on another drive
        return os.fspath(path)
    return os.fspath(path) if relative.startswith(os.pardir) else relative
