"""Write and read checkpoints. Writing is atomic, and reading executes no code.

A checkpoint contains only tensors, numbers, and text.
"""

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
RETRY_SECONDS = 60.0  # maximum time until the next try after a checkpoint could not be written

log = logging.getLogger(__name__)


class CheckpointSchedule:
    """Decides when checkpoints are due, and writes them.

    Attributes:
        saved_at: iteration of the last checkpoint that was written. −1 before the first one.
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
        """Write a checkpoint. If it cannot be written, log a warning and keep the checkpoint before it.

        Args:
            state: content of the checkpoint.
            best: whether to store it also as the best checkpoint.

        Returns:
            Whether the checkpoint was written.
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
    """Return the file name of the checkpoint that was written `age` saves ago. Age 0 is the newest one."""
    return NAME if age == 0 else f"checkpoint-{age}.pt"


def save_checkpoint(run_dir: Path, state: dict[str, Any], *, keep: int = 2, best: bool = False) -> None:
    """Write the newest checkpoint, and rename the older ones. A complete checkpoint exists at every moment.

    Args:
        run_dir: directory of the run.
        state: content of the checkpoint.
        keep: number of checkpoints to keep, including this one.
        best: whether to store it also as the best checkpoint.

    Raises:
        OSError: if the checkpoint cannot be written. The existing checkpoints are kept.
    """
    path = run_dir / NAME
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch raises it instead of an OSError
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
    return load_checkpoint(run_dir / NAME)  # raises ConfigError, because the file does not exist


def load_common_checkpoint(run_dir: Path, process_group: ProcessGroup) -> dict[str, Any]:
    """Load this rank's checkpoint of the newest iteration for which every rank has an undamaged checkpoint.

    Args:
        run_dir: directory of this rank.
        process_group: the ranks.

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
    by_rank = process_group.gather_objects((sorted(found), reason or f"{run_dir} contains no checkpoint"))
    common = set(found).intersection(*(iterations for iterations, _ in by_rank))
    if not common:
        reasons = [text for iterations, text in by_rank if not iterations]
        available = ", ".join(f"rank {rank} {iterations}" for rank, (iterations, _) in enumerate(by_rank))
        raise ConfigError(
            f"there is no iteration of which every rank has a checkpoint ({available}); {'; '.join(reasons)}"
        )
    return load_checkpoint(found[max(common)])


def _newest_first(run_dir: Path) -> Iterator[Path]:
    """Iterate over the checkpoints of a run without the best one, the newest first."""
    age = 0
    while (run_dir / file_name(age)).is_file():
        yield run_dir / file_name(age)
        age += 1


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without executing code from it.

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
    """Check that the tensors of a checkpoint have the shapes that the run needs.

    Args:
        what: kind of the tensors, for the message.
        found: tensors of the checkpoint, by name.
        expected: shapes by name.

    Raises:
        ConfigError: if a name or shape differs. The message names the first difference.
    """
    advice = "the environment's spaces are not those with which the run was started; restore them or start a new run"
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            where = "the checkpoint" if name in found else "this run"
            raise ConfigError(f"checkpoint: only {where} has {what} {name}; {advice}")
        before, now = tuple(found[name].shape), tuple(expected[name])
        if before != now:
            raise ConfigError(f"checkpoint: {what} {name} has the shape {before}, but {now} is needed; {advice}")
