"""Checkpoints: written atomically, and read without executing code. They contain tensors, numbers, and text only."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.parallel.process_group import ProcessGroup

FORMAT = 3
NAME = "checkpoint.pt"
BEST = "checkpoint-best.pt"
RETRY_SECONDS = 60.0  # after a checkpoint that could not be written

log = logging.getLogger(__name__)


class CheckpointSchedule:
    """When checkpoints are due, and the writing of them.

    Attributes:
        saved_at: iteration of the last checkpoint that was written; −1 before the first.
    """

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._due_at = 0.0
        self.saved_at = -1

    def is_due(self, iteration: int) -> bool:
        """Whether a checkpoint is due, by --checkpoint-every or --checkpoint-minutes."""
        every = self._config.checkpoint_every
        return time.monotonic() >= self._due_at or (every is not None and iteration % every == 0)

    def save(self, state: dict[str, Any], *, best: bool) -> bool:
        """Write a checkpoint; returns whether that succeeded. On a full disk the one before is kept, with a warning.

        best: keep it as the best so far, too.
        """
        minutes = self._config.checkpoint_minutes
        try:
            save_checkpoint(self._run_dir, state, keep=self._config.keep_checkpoints, best=best)
        except OSError as error:
            log.warning("no checkpoint was written, the one before is kept: %s", error)
            self._due_at = time.monotonic() + min(RETRY_SECONDS, 60 * minutes)
            return False
        self.saved_at = state["iteration"]
        self._due_at = time.monotonic() + 60 * minutes
        return True


def file_name(age: int) -> str:
    """The name of the checkpoint that was written `age` saves ago; 0 is the newest."""
    return NAME if age == 0 else f"checkpoint-{age}.pt"


def save_checkpoint(run_dir: Path, state: dict[str, Any], *, keep: int = 2, best: bool = False) -> None:
    """Write `state` as the newest checkpoint. At every moment there is a complete checkpoint.

    Args:
        keep: number of checkpoints to keep, including this one.
        best: store it under the name of the best checkpoint, too.

    Raises:
        OSError: if it cannot be written. The existing checkpoints do not change.
    """
    path = run_dir / NAME
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch hides the system's error
        raise OSError(f"{temporary}: {error}") from error
    if best:
        _duplicate(temporary, run_dir / BEST)
    for age in range(keep - 1, 1, -1):
        if (run_dir / file_name(age - 1)).exists():
            os.replace(run_dir / file_name(age - 1), run_dir / file_name(age))
    if keep > 1 and path.exists():
        _duplicate(path, run_dir / file_name(1))
    os.replace(temporary, path)
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _duplicate(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it if the file system has no hard links."""
    temporary = target.with_suffix(".partial")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def load_newest_checkpoint(run_dir: Path) -> dict[str, Any]:
    """Load the newest undamaged checkpoint of a run.

    Raises:
        ConfigError: if there is none.
    """
    damaged: ConfigError | None = None
    for path in _newest_first(run_dir):
        try:
            return load_checkpoint(path)
        except ConfigError as error:
            log.warning("%s; trying the checkpoint before it", error)
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return load_checkpoint(run_dir / NAME)  # it does not exist, and this raises the error that says so


def load_common_checkpoint(run_dir: Path, process_group: ProcessGroup) -> dict[str, Any]:
    """Load this rank's checkpoint of the newest iteration of which every rank has an undamaged one.

    Args:
        run_dir: of this rank.

    Raises:
        ConfigError: on all ranks, if there is none.
    """
    if process_group.size == 1:
        return load_newest_checkpoint(run_dir)
    found: dict[int, Path] = {}
    reason = ""
    for path in _newest_first(run_dir):
        try:
            found.setdefault(load_checkpoint(path)["iteration"], path)
        except ConfigError as error:
            log.warning("%s", error)
            reason = str(error)
    everywhere = process_group.gather_objects((sorted(found), reason or f"{run_dir} contains no checkpoint"))
    common = set(found).intersection(*(iterations for iterations, _ in everywhere))
    if not common:
        reasons = [text for iterations, text in everywhere if not iterations]
        have = ", ".join(f"rank {rank} {iterations}" for rank, (iterations, _) in enumerate(everywhere))
        raise ConfigError(f"there is no iteration of which every rank has a checkpoint ({have}); {'; '.join(reasons)}")
    return load_checkpoint(found[max(common)])


def _newest_first(run_dir: Path) -> Iterator[Path]:
    age = 0
    while (run_dir / file_name(age)).is_file():
        yield run_dir / file_name(age)
        age += 1


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Nothing in it is executed.

    Raises:
        ConfigError: if it does not exist, is damaged, or has another format.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist: the run has saved no checkpoint yet; name the directory of another run"
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for damaged files
        raise ConfigError(
            f"{path} is damaged or not a checkpoint ({type(error).__name__}); name a directory with an undamaged one"
        ) from error
    if not isinstance(state, dict) or "format" not in state:
        raise ConfigError(f"{path} is not a checkpoint of shmppo; name the directory of a run")
    if state["format"] != FORMAT:
        raise ConfigError(
            f"{path} has checkpoint format {state['format']}, but this version reads format {FORMAT}; "
            f"use the version of shmppo that wrote it ({state.get('fingerprint', {}).get('shmppo', 'unknown')})"
        )
    return state


def check_shapes(what: str, found: Mapping[str, torch.Tensor], expected: Mapping[str, Sequence[int]]) -> None:
    """Raise ConfigError with the first difference between a checkpoint's tensors and those of the run to continue.

    Args:
        what: the kind of tensors, for the message.
        expected: name → shape.
    """
    advice = "the environment's spaces are not those with which the run was started; restore them or start a new run"
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            where = "the checkpoint" if name in found else "this run"
            raise ConfigError(f"checkpoint: only {where} has {what} {name}; {advice}")
        before, now = tuple(found[name].shape), tuple(expected[name])
        if before != now:
            raise ConfigError(f"checkpoint: {what} {name} has the shape {before}, but {now} is needed; {advice}")
