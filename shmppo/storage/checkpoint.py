"""Write and select checkpoints. Writing is atomic. A run directory contains these checkpoints:

- checkpoint.pt, the newest one, and checkpoint-1.pt, the one before it
- checkpoint-best.pt, the one with the highest mean return
- checkpoint-iteration-000100.pt, kept for good (--keep-every)
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from shmppo.config.schemas import config_digest
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.utils.files import FailedWrites, replaced_file, user_path

NAME, BEFORE = "checkpoint.pt", "checkpoint-1.pt"
BEST, KEPT = "checkpoint-best.pt", "checkpoint-iteration-"
SECONDS_BETWEEN = 600.0  # largest time between two checkpoints
RETRY_SECONDS = 60.0  # maximum time until the next try after a checkpoint could not be written

log = logging.getLogger(__name__)


class CheckpointSchedule:
    """Decides when checkpoints are due, and writes them.

    Attributes:
        saved_at: iteration of the last checkpoint that was written. −1 before the first one.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, failed_writes: FailedWrites) -> None:
        """Read the digest of config.json, which each checkpoint contains. Raises ConfigError if it is damaged."""
        self._config, self._run_dir, self._failed_writes = config, run_dir, failed_writes
        self._config_digest = config_digest(run_dir / "config.json")
        self._due_at = 0.0
        self.saved_at = -1

    def is_due(self, iteration: int) -> bool:
        """Whether a checkpoint is due, by --checkpoint-every, --keep-every, or the time since the last one."""
        every = self._config.checkpoint_every
        due = time.monotonic() >= self._due_at or (every is not None and iteration % every == 0)
        return due or self._is_kept(iteration)

    def _is_kept(self, iteration: int) -> bool:
        """Whether the checkpoint of an iteration is kept for good."""
        every = self._config.keep_every
        return every is not None and iteration > 0 and iteration % every == 0

    def save(self, state: dict[str, Any], *, best: bool) -> bool:
        """Write a checkpoint. If it cannot be written, log a warning and keep the checkpoint before it.

        Args:
            state: content of the checkpoint.
            best: whether to store it also as the best checkpoint.

        Returns:
            Whether the checkpoint was written.
        """
        copies = [BEST] if best else []
        if self._is_kept(state["iteration"]):
            copies.append(kept_name(state["iteration"]))
        try:
            content = {**state, "config_digest": self._config_digest}
            save_checkpoint(self._run_dir, content, copies=copies)
        except OSError as error:
            for name in copies:
                self._failed_writes.lost(name, error)
            self._failed_writes.failed(NAME, error, "no checkpoint was written, the one before is kept")
            self._due_at = time.monotonic() + min(RETRY_SECONDS, SECONDS_BETWEEN)
            return False
        for name in (NAME, *copies):
            self._failed_writes.succeeded(name)
        self.saved_at = state["iteration"]
        self._due_at = time.monotonic() + SECONDS_BETWEEN
        return True


def kept_name(iteration: int) -> str:
    """Return the file name of a checkpoint that is kept for good (--keep-every)."""
    return f"{KEPT}{iteration:06d}.pt"


def save_checkpoint(run_dir: Path, state: dict[str, Any], *, copies: Iterable[str] = ()) -> None:
    """Write the newest checkpoint, and keep the one before it. A complete checkpoint exists at every moment.

    Args:
        run_dir: directory of the run.
        state: content of the checkpoint.
        copies: further file names of this checkpoint. They are not renamed when the next one is written.

    Raises:
        OSError: if the checkpoint cannot be written. The existing checkpoints are kept.
    """
    path = run_dir / NAME
    with replaced_file(path) as temporary:
        write_checkpoint(temporary, state)
        for name in copies:
            _duplicate(temporary, run_dir / name)
        if path.exists():
            _duplicate(path, run_dir / BEFORE)
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems do not support it for directories
            os.fsync(directory)
    finally:
        os.close(directory)


def _duplicate(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it if the file system has no hard links."""
    with replaced_file(target) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def load_newest_checkpoint(run_dir: Path) -> dict[str, Any]:
    """Load the newest undamaged checkpoint of a run.

    Raises:
        ConfigError: if there is none.
    """
    paths = _newest_first(run_dir)
    damaged: ConfigError | None = None
    for path in paths:
        try:
            return load_checkpoint(path)
        except ConfigError as error:
            if path != paths[-1]:
                log.warning("%s; trying the checkpoint before it", error)
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    raise no_checkpoint(run_dir)


def load_selected_checkpoint(run_dir: Path, which: str | int | Path = "last") -> dict[str, Any]:
    """Load one checkpoint of a run.

    Args:
        run_dir: directory of the run.
        which: "last" for the newest undamaged checkpoint, "best" for the one with the highest mean return, the number
            of an iteration, or the path of a checkpoint file. A relative path starts at the working directory or at the
            run directory.

    Raises:
        ConfigError: if there is no such checkpoint, or if it is damaged.
    """
    text = str(which)
    if text == "last":
        return load_newest_checkpoint(run_dir)
    if is_file_name(which):
        path = next((path for path in (user_path(text, "--checkpoint"), run_dir / text) if path.is_file()), None)
        if path is None:
            raise ConfigError(f"--checkpoint {text} is not a file; name last, best, an iteration, or a checkpoint file")
        return load_checkpoint(path)
    if not _newest_first(run_dir):
        raise no_checkpoint(run_dir)
    if text == "best":
        if not (run_dir / BEST).is_file():
            raise ConfigError(
                f"{run_dir} has no best checkpoint, because no episode had ended when its checkpoints were saved; use "
                "--checkpoint last"
            )
        return load_checkpoint(run_dir / BEST)
    return _load_iteration(run_dir, int(text))


def is_file_name(which: str | int | Path) -> bool:
    """Return whether a choice of a checkpoint (see `load_selected_checkpoint`) is the path of a file."""
    return str(which) not in ("last", "best") and not str(which).isdecimal()


def _load_iteration(run_dir: Path, iteration: int) -> dict[str, Any]:
    """Load the checkpoint of an iteration. Raises ConfigError if it was not kept. The message lists those that were."""
    found: set[int] = set()
    # The name of a checkpoint that is kept for good contains its iteration, so it is found without reading the others.
    for path in (run_dir / kept_name(iteration), *_newest_first(run_dir), run_dir / BEST):
        try:
            state = load_checkpoint(path) if path.is_file() else None
        except ConfigError as error:
            log.warning("%s", error)
            continue
        if state is not None and state["iteration"] == iteration:
            return state
        found |= {state["iteration"]} if state is not None else set()
    kept = ", ".join(map(str, sorted(found))) or "none"
    raise ConfigError(
        f"{run_dir} has kept no checkpoint of iteration {iteration}, only of {kept}; choose one of them, or train with "
        "--keep-every"
    )


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
    by_rank = process_group.gather_objects((sorted(found), reason or str(no_checkpoint(run_dir))))
    common = set(found).intersection(*(iterations for iterations, _ in by_rank))
    if not common:
        reasons = [text for iterations, text in by_rank if not iterations]
        available = ", ".join(f"rank {rank} {iterations}" for rank, (iterations, _) in enumerate(by_rank))
        raise ConfigError(
            f"there is no iteration of which every rank has a checkpoint ({available}); {'; '.join(reasons)}"
        )
    return load_checkpoint(found[max(common)])


def _newest_first(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, the newest first: the last two, then those of --keep-every."""
    kept = {int(path.stem.rpartition("-")[2]): path for path in run_dir.glob(f"{KEPT}*.pt")}
    last = [path for path in (run_dir / NAME, run_dir / BEFORE) if path.exists()]
    return last + [kept[iteration] for iteration in sorted(kept, reverse=True)]


def no_checkpoint(run_dir: Path) -> ConfigError:
    """Say why a directory has no checkpoint."""
    if not run_dir.exists():
        reason = "does not exist; name the directory of a run"
    elif not run_dir.is_dir():
        reason = "is not a directory; name the directory of a run"
    elif not (run_dir / "config.json").is_file():
        reason = "is not the directory of a run, because it contains no config.json; name the directory of a run"
    else:
        reason = "contains no checkpoint, because the run has saved none yet; name the directory of another run"
    return ConfigError(f"{run_dir} {reason}")


OTHER_SPACES = "the environment's spaces are not those with which the run was started; restore them or start a new run"


def check_shapes(
    what: str,
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, Sequence[int]],
    *,
    where: str = "checkpoint",
    advice: str = OTHER_SPACES,
) -> None:
    """Check that the tensors of a checkpoint have the shapes that the run needs.

    Args:
        what: kind of the tensors, for the message.
        found: tensors of the checkpoint, by name.
        expected: shapes by name.
        where: the beginning of the message.
        advice: the end of the message: the cause, and what to do.

    Raises:
        ConfigError: if a name or shape differs. The message names the first difference.
    """
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            owner = "the checkpoint" if name in found else "this run"
            raise ConfigError(f"{where}: only {owner} has {what} {name}; {advice}")
        before, now = tuple(found[name].shape), tuple(expected[name])
        if before != now:
            raise ConfigError(f"{where}: {what} {name} has the shape {before}, but {now} is needed; {advice}")
