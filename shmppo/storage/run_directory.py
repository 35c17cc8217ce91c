"""The directory of a run: its name, its files, and the rows of its tables. A run writes only to this directory."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shmppo.config.checks import require
from shmppo.config.extensions import added
from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import resume_command
from shmppo.errors import ConfigError, SaveError
from shmppo.utils import machine
from shmppo.utils.files import (
    config_error_if_unwritable,
    open_file,
    read_file,
    read_object,
    refuse_links,
    short_path,
    write_file,
    write_json,
)

CONFIG, METRICS, SUMMARY, LOG = "config.json", "metrics.csv", "summary.json", "run.log"
LOCK = "run.lock"
EVALUATIONS, EPISODES, VIDEOS = "eval.csv", "episodes.csv", "videos"
FAILED_EPISODE, MEMORY_PICTURE = "failed_episode.json", "memory.png"
TABLES = (EPISODES, *(name for module in added("files") for name in module.TABLES))
"""Further tables, whose rows begin with an iteration."""
DIRECTORIES = tuple(name for module in added("files") for name in module.DIRECTORIES)
"""Directories of extensions, whose files are named by iterations."""

log = logging.getLogger(__name__)


def create_run_directory(
    config: TrainConfig,
    stack: ExitStack,
    parent: Path,
    origin: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Create and lock the directory of a run, and write config.json. Return the absolute path of the directory.

    Args:
        stack: keeps the directory locked.
        origin: what config.json records in addition about the run that this one starts from.
        overwrite: whether to remove a run that the directory contains.

    Raises:
        ConfigError: if the directory cannot be written, is in use, or contains a run already.
    """
    path = parent / (config.run_dir or default_name(config))
    with config_error_if_unwritable(path):
        if config.run_dir is None:
            path = _make_unused(path)
        else:
            path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(path))
        if overwrite and holds_run(path):
            _remove_run(path)
        refuse_existing_run(path)
        write_json(path / CONFIG, describe(config) | dict(origin or {}))
    return path


def refuse_existing_run(path: Path) -> None:
    """Raise ConfigError if a directory contains a run that can be resumed."""
    require(
        not holds_run(path),
        f"--run-dir {path} holds a run already; name another directory, resume that run with --resume, or delete it "
        "as --overwrite does",
    )


def _remove_run(path: Path) -> None:
    """Remove what a run has written to its directory. Other files stay."""
    names = (VIDEOS, "tensorboard", "wandb", *DIRECTORIES, *fields_with(TrainConfig, copied=True))
    ranks = itertools.takewhile(Path.is_dir, (directory_of(path, rank) for rank in itertools.count(1)))
    for directory in (*(path / name for name in names), *ranks):
        if directory.is_dir():
            shutil.rmtree(directory)
    # Without the last one, it is no run.
    files = (METRICS, SUMMARY, LOG, EVALUATIONS, FAILED_EPISODE, MEMORY_PICTURE, *TABLES, CONFIG)
    for file in (path / "checkpoint.pt", *path.glob("checkpoint-*.pt"), *(path / name for name in files)):
        file.unlink(missing_ok=True)


def _make_unused(path: Path) -> Path:
    """Make a directory with the first unused one of its numbered names, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in _numbered(str(path)):
        with contextlib.suppress(FileExistsError):  # another run may make it at the same time
            Path(name).mkdir()
            return Path(name)
    raise AssertionError  # the names are endless


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Check a run directory for links, and lock it while the context is open: only one process may write to it.

    The system releases the lock if the process is killed. On file systems without locks, a warning is logged instead.

    Raises:
        ConfigError: if another process has locked it, or if it has links. The message contains the process id.
        OSError: if it cannot be written.
    """
    refuse_links(run_dir)
    with open_file(run_dir / LOCK, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigError(
                f"{run_dir} is in use by the run with the process id {file.read().strip()}; stop that run, or name "
                "another directory"
            ) from error
        except OSError as error:
            log.warning("%s cannot be locked: %s; do not start a second run in it", run_dir, error)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def saving(run_dir: Path) -> Iterator[None]:
    """Raise a SaveError for an OSError of the body, which writes files of a run. It ends the run."""
    try:
        yield
    except OSError as error:
        advice = f"continue with {resume_command(run_dir)}" if holds_run(run_dir) else "start the run again"
        raise SaveError(f"{short_path(run_dir)} cannot be written ({error.strerror or error}); {advice}") from error


def has_finished(run_dir: Path, iterations: int, conditions: Sequence[str] = ()) -> bool:
    """Whether a run has ended, with its last evaluation and its summary.

    Args:
        run_dir: directory of the run.
        iterations: number of iterations after which a run without an error has ended.
        conditions: conditions of --stop-when, with which it has ended in any case.
    """
    with contextlib.suppress(ConfigError, KeyError, TypeError):  # it has no summary, or a damaged one
        summary = read_object(run_dir / SUMMARY, "")
        ended = summary["iterations"] >= iterations and summary["error"] is None
        return ended or summary["stop_reason"] in conditions
    return False


def holds_run(path: Path) -> bool:
    """Return whether a directory contains a run that can be resumed. It must have saved a checkpoint."""
    return (path / CONFIG).exists() and any(path.glob("checkpoint*.pt"))


def directory_of(run_dir: Path, rank: int) -> Path:
    """Return the directory of a rank: the run directory for rank 0, and a subdirectory for other ranks."""
    return run_dir if rank == 0 else run_dir / f"rank-{rank}"


def default_name(config: TrainConfig) -> str:
    """Return runs/<environment>-s<seed>-<time>. Characters that a file name should not contain become hyphens."""
    env = "".join(character if character.isalnum() or character in "-._" else "-" for character in config.env_id)
    return os.path.join("runs", f"{env}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}")


def branch_name(run_dir: Path, iteration: int) -> str:
    """Return the default name of the directory of a branch from an older checkpoint. It is not in use."""
    return next(name for name in _numbered(f"{run_dir}-from-{iteration:06d}") if not os.path.exists(name))


def _numbered(name: str) -> Iterator[str]:
    """Yield NAME, NAME-2, NAME-3, …"""
    return itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))


def describe(config: TrainConfig) -> dict[str, Any]:
    """Return the content of config.json: the resolved configuration, the versions, the machine."""
    return {
        "config": config.to_json(),
        "versions": machine.versions(),
        "processor": machine.processor_type(config.computed_by),
        "platform": sys.platform,
        "git_revision": machine.git_revision(),
    }


class MetricsFile:
    """The file metrics.csv, eval.csv, or episodes.csv."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Write the header, or read it if the file exists.

        Raises:
            OSError: if it cannot be written.
        """
        self._path = path
        if not path.exists():
            write_file(path, ",".join(columns).encode() + b"\r\n")
        with open_file(path) as file:
            self._columns = file.readline().strip().decode(errors="replace").split(",")

    def write(self, row: dict[str, float], hashes: Mapping[str, str] = MappingProxyType({})) -> None:
        """Append a row.

        Args:
            row: a value for every column, except HASHES. The file gets a column for each new name. A column of an
                earlier name that the row lacks is NaN.
            hashes: the values of HASHES. The file has these columns, unless an earlier version has begun it.

        Raises:
            SaveError: if it cannot be written, also because the file or its directory was removed.
        """
        with saving(self._path.parent):
            if new := [name for name in row if name not in self._columns]:
                self._add_columns(new)
            cells = {name: str(value) if isinstance(value, int) else f"{value:.10g}" for name, value in row.items()}
            cells |= hashes
            self._append(",".join(cells.get(name, "nan") for name in self._columns) + "\r\n")

    def write_rows(self, rows: Iterable[Sequence[float]]) -> None:
        """Append rows with a number for every column, as `write` does."""
        with saving(self._path.parent):
            self._append("".join(",".join(f"{number:.10g}" for number in row) + "\r\n" for row in rows))

    def _append(self, lines: str) -> None:
        with open_file(self._path, "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(lines.encode())

    def _add_columns(self, names: Sequence[str]) -> None:
        """Add columns that are NaN in all rows so far."""
        self._columns += names
        rows = read_file(self._path).splitlines()[1:]
        lines = [",".join(self._columns).encode(), *(row + b",nan" * len(names) for row in rows)]
        write_file(self._path, b"".join(line + b"\r\n" for line in lines))
