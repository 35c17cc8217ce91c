"""Saving and loading what a run is, atomically and without code: tensors, numbers and text only."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shmppo.errors import ConfigError
from shmppo.parallel.process_group import ProcessGroup

FORMAT = 2
NAME = "checkpoint.pt"
BEST = "checkpoint-best.pt"

log = logging.getLogger(__name__)


def older(age: int) -> str:
    """The name of the checkpoint `age` saves ago; 0 is the newest."""
    return NAME if age == 0 else f"checkpoint-{age}.pt"


def save_checkpoint(run_dir: Path, state: dict[str, Any], *, keep: int = 2, best: bool = False) -> None:
    """Write `state` as the newest checkpoint. At no moment is there none that is whole.

    Args:
        keep: how many of the newest to keep, this one included.
        best: keep it apart as well, as the best so far.

    Raises:
        OSError: if it cannot be written; what was there is untouched.
    """
    path = run_dir / NAME
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch's writer hides the system's error
        raise OSError(f"{temporary}: {error}") from error
    if best:
        _duplicate(temporary, run_dir / BEST)
    for age in range(keep - 1, 1, -1):
        if (run_dir / older(age - 1)).exists():
            os.replace(run_dir / older(age - 1), run_dir / older(age))
    if keep > 1 and path.exists():
        _duplicate(path, run_dir / older(1))
    os.replace(temporary, path)
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _duplicate(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    temporary = target.with_suffix(".partial")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def load_newest_checkpoint(run_dir: Path) -> dict[str, Any]:
    """The newest checkpoint of a run that is whole.

    Raises:
        ConfigError: if there is none.
    """
    damaged: ConfigError | None = None
    for path in _newest_first(run_dir):
        try:
            return load_checkpoint(path)
        except ConfigError as error:
            log.warning("%s; going back to the one before", error)
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return load_checkpoint(run_dir / NAME)  # there is none, and this says so


def load_common_checkpoint(run_dir: Path, ranks: ProcessGroup) -> dict[str, Any]:
    """This rank's checkpoint of the newest iteration of which every rank has a whole one.

    Args:
        run_dir: of this rank.

    Raises:
        ConfigError: on all ranks, if there is none.
    """
    if ranks.size == 1:
        return load_newest_checkpoint(run_dir)
    kept: dict[int, Path] = {}
    missing = ""
    for path in _newest_first(run_dir):
        try:
            kept.setdefault(load_checkpoint(path)["iteration"], path)
        except ConfigError as error:
            log.warning("%s", error)
            missing = str(error)
    everywhere = ranks.gather_objects((sorted(kept), missing or f"{run_dir} holds no checkpoint"))
    common = set(kept).intersection(*(iterations for iterations, _ in everywhere))
    if not common:
        reasons = [text for iterations, text in everywhere if not iterations]
        have = ", ".join(f"rank {rank} {iterations}" for rank, (iterations, _) in enumerate(everywhere))
        raise ConfigError(f"there is no iteration of which every rank has a checkpoint ({have}); {'; '.join(reasons)}")
    return load_checkpoint(kept[max(common)])


def _newest_first(run_dir: Path) -> Iterator[Path]:
    age = 0
    while (run_dir / older(age)).is_file():
        yield run_dir / older(age)
        age += 1


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed.

    Raises:
        ConfigError: if it is missing, damaged, or of another format.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; the run has saved no checkpoint yet")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for damaged files
        raise ConfigError(
            f"{path} is damaged or not a checkpoint ({type(error).__name__}); name a directory with a whole one"
        ) from error
    if not isinstance(state, dict) or "format" not in state:
        raise ConfigError(f"{path} is not a checkpoint of shmppo; name the directory of a run")
    if state["format"] != FORMAT:
        raise ConfigError(
            f"{path} has checkpoint format {state['format']}, this version reads {FORMAT}; "
            f"use the version of shmppo that wrote it ({state.get('fingerprint', {}).get('shmppo', 'unknown')})"
        )
    return state


def check_shapes(what: str, found: Mapping[str, torch.Tensor], expected: Mapping[str, Sequence[int]]) -> None:
    """Raises ConfigError with the first difference between a checkpoint's tensors and those of the run to go on with.

    Args:
        what: the kind of tensors, for the message.
        expected: name → shape.
    """
    advice = "the environment's spaces are not those that the run was begun with; restore them or start a new run"
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            where = "the checkpoint" if name in found else "this run"
            raise ConfigError(f"checkpoint: only {where} has {what} {name}; {advice}")
        before, now = tuple(found[name].shape), tuple(expected[name])
        if before != now:
            raise ConfigError(f"checkpoint: {what} {name} has the shape {before}, here it is {now}; {advice}")
