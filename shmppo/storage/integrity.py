"""Check that the files of a run are undamaged and belong together: checksums, digests, and hashes of the weights."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from shmppo.config.schemas import FAILED_EPISODE_FILE, SUMMARY_FILE, config_digest, read_object
from shmppo.config.train_config import TrainConfig, from_json, load_config
from shmppo.errors import ConfigError
from shmppo.loggers.checked_rows import HASH_DIGITS, WEIGHTS_HASH, read_checked_rows
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY
from shmppo.models.actor_critic import weights_sha256
from shmppo.storage.checkpoint import no_checkpoint
from shmppo.storage.checkpoint_file import check_keys, load_checkpoint
from shmppo.storage.run_directory import CONFIG, EVALUATIONS, FAILED_EPISODE, FAILED_MINIBATCH, METRICS, SUMMARY

ADVICE = "restore it from a copy"
_ZIP_END = 22  # bytes of the last record of a zip file without a comment
Rows = dict[int, dict[str, str]]
"""Rows of metrics.csv by iteration."""


class Checkpoint(NamedTuple):
    """What is needed to know of a checkpoint to choose one."""

    path: Path
    iteration: int
    config: TrainConfig
    config_digest: str
    weights_hash: str
    inexact_reasons: list[str]


class RunFiles(NamedTuple):
    """The files of an undamaged run."""

    run_dir: Path
    rows: Rows
    checkpoints: list[Checkpoint]
    """In the order of iterations."""

    @property
    def newest(self) -> Checkpoint:
        """The checkpoint of the last iteration that has one."""
        return self.checkpoints[-1]

    @property
    def last_iteration(self) -> int:
        """Number of iterations in metrics.csv."""
        return max(self.rows, default=0)


def check_run(run_dir: Path) -> RunFiles:
    """Check all files of a run that has ended. Logs, videos, and kl.csv contain no checksums.

    Raises:
        ConfigError: if a file is damaged, or does not belong to the others. Its details list the other such files.
    """
    if not (run_dir / CONFIG).is_file():
        raise no_checkpoint(run_dir)
    problems: list[str] = []
    files = _check_directory(run_dir, problems)
    for rank_dir in sorted(run_dir.glob("rank-*")):
        _check_directory(rank_dir, problems)
    if problems:
        first, *others = problems
        raise ConfigError(f"{first}; see {run_dir}", details="\n".join(others))
    return files


def _check_directory(run_dir: Path, problems: list[str]) -> RunFiles:
    """Check the directory of one rank. Problems are appended to a list."""
    with _collected(problems):
        load_config(run_dir)
    checkpoints: list[Checkpoint] = []
    for path in sorted(run_dir.glob("checkpoint*.pt")):
        with _collected(problems):
            checkpoints.append(_read_checkpoint(path))
    checkpoints.sort(key=lambda checkpoint: checkpoint.iteration)
    files = RunFiles(run_dir, {}, checkpoints)
    if not checkpoints and not problems:
        problems.append(str(no_checkpoint(run_dir)))
    with _collected(problems):
        files = files._replace(rows=_read_rows(run_dir / METRICS))
        _check_weights(files)
    for name, check in (
        (CONFIG, lambda path: _check_digest(path, checkpoints)),
        (EVALUATIONS, _check_evaluations),
        (SUMMARY, lambda path: _check_summary(path, files.rows)),
        (FAILED_EPISODE, lambda path: read_object(path, FAILED_EPISODE_FILE, ADVICE)),
        (FAILED_MINIBATCH, _check_minibatch),
        *((str(path.relative_to(run_dir)), _check_zip) for path in sorted(run_dir.glob("kl/*.npz"))),
    ):
        if (run_dir / name).exists():
            with _collected(problems):
                checked: Callable[[Path], object] = check
                checked(run_dir / name)
    return files


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Append the message of a ConfigError to a list, once."""
    try:
        yield
    except ConfigError as error:
        if str(error) not in problems:
            problems.append(str(error))


def _read_checkpoint(path: Path) -> Checkpoint:
    state = load_checkpoint(path)
    check_keys(state, path)
    return Checkpoint(
        path,
        state["iteration"],
        from_json(json.loads(state["config"])),
        state["config_digest"],
        weights_sha256(state["learner"]["model"].values())[:HASH_DIGITS],
        state["inexact_reasons"],
    )


def _read_rows(path: Path) -> Rows:
    """Read metrics.csv. Every row must be complete."""
    found = read_checked_rows(path, tuple(GLOSSARY))
    if found.torn:
        raise ConfigError(f"{path}: its last row is incomplete; {ADVICE}, or resume the run, which removes the row")
    return {int(row["iteration"]): row for row in found.rows}


def _check_weights(files: RunFiles) -> None:
    """Compare the weights of the checkpoints with metrics.csv, which must have a row for each of them."""
    path = files.run_dir / METRICS
    for checkpoint in files.checkpoints:
        if not checkpoint.iteration:
            continue
        row = files.rows.get(checkpoint.iteration)
        if row is None:
            raise ConfigError(
                f"{path} has no row of iteration {checkpoint.iteration}, although {checkpoint.path.name} was written "
                f"after it; {ADVICE}"
            )
        if row[WEIGHTS_HASH] != checkpoint.weights_hash:
            raise ConfigError(
                f"{checkpoint.path} has the weights {checkpoint.weights_hash}, but {METRICS} has {row[WEIGHTS_HASH]} "
                f"after iteration {checkpoint.iteration}; restore both from one copy"
            )


def _check_digest(path: Path, checkpoints: list[Checkpoint]) -> None:
    digest = config_digest(path)
    for checkpoint in checkpoints:
        if digest != checkpoint.config_digest:
            raise ConfigError(f"{path} has changed since {checkpoint.path.name} was written; {ADVICE}")


def _check_evaluations(path: Path) -> None:
    if read_checked_rows(path, tuple(EVALUATION_GLOSSARY)).torn:
        raise ConfigError(f"{path}: its last row is incomplete; {ADVICE}, or resume the run, which removes the row")


def _check_summary(path: Path, rows: Rows) -> None:
    summary = read_object(path, SUMMARY_FILE, ADVICE)
    row = rows.get(summary["iterations"])
    weights = summary["weights_sha256"]  # None: the run has failed during an update
    if row is not None and weights is not None and not weights.startswith(row[WEIGHTS_HASH]):
        raise ConfigError(f"{path} has other weights than {METRICS}; restore both from one copy")


def _check_minibatch(path: Path) -> None:
    _check_zip(path)
    with _damage(path):
        torch.load(path, map_location="cpu", weights_only=True)


def _check_zip(path: Path) -> None:
    """Check the CRC-32 of all parts of a zip file, and their number, which its last record contains."""
    with _damage(path), zipfile.ZipFile(path) as file:
        end = path.read_bytes()[-_ZIP_END:]
        count = int.from_bytes(end[10:12], "little")
        if file.testzip() is not None or end[:4] != b"PK\5\6" or len(file.infolist()) != count:
            raise zipfile.BadZipFile


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise ConfigError for any exception of the body, which reads a file."""
    try:
        yield
    except Exception as error:  # zipfile and torch raise many types for damaged files
        raise ConfigError(f"{path} is damaged ({type(error).__name__}); {ADVICE}") from error
