"""Write and select checkpoints. Writing is atomic. A run directory contains these checkpoints:

- checkpoint.pt, the newest one, and checkpoint-1.pt, the one before it
- checkpoint-best.pt, the one with the highest value of --best-by
- checkpoint-iteration-000100.pt, kept for good (--keep-every, and the first one of a branch)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, print_warning
from shmppo.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from shmppo.storage.checkpoint_file import DamagedCheckpointError, load_checkpoint, write_checkpoint
from shmppo.utils.files import is_run, refuse_links, replaced_file, sync, user_path

NAME, BEFORE = "checkpoint.pt", "checkpoint-1.pt"
BEST, KEPT = "checkpoint-best.pt", "checkpoint-iteration-"
SECONDS_BETWEEN = 600.0  # largest time between two checkpoints


class CheckpointSchedule:
    """Decides when checkpoints are due, and writes them.

    Attributes:
        saved_at: iteration of the last checkpoint that was written. Before the first one, the iteration at the start.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, iteration: int, branched_at: int | None = None) -> None:
        """Create the schedule.

        Args:
            iteration: at the start. Its checkpoint takes the place of the one that is continued.
            branched_at: with which a branch begins. Its checkpoint is kept for good. None: the run is no branch.
        """
        self._config, self._run_dir, self._branched_at = config, run_dir, branched_at
        self._due_at = 0.0
        self.saved_at = iteration

    def is_due(self, iteration: int) -> bool:
        """Whether a checkpoint is due, by --checkpoint-every, --keep-every, or the time since the last one."""
        every = self._config.checkpoint_every
        due = time.monotonic() >= self._due_at or (every is not None and iteration % every == 0)
        return due or self._is_kept(iteration)

    def _is_kept(self, iteration: int) -> bool:
        """Whether the checkpoint of an iteration is kept for good."""
        every = self._config.keep_every
        return iteration == self._branched_at or (every is not None and iteration > 0 and iteration % every == 0)

    def save(self, state: dict[str, Any], *, best: bool, name: str | None = None) -> None:
        """Write a checkpoint.

        Args:
            state: content of the checkpoint.
            best: whether to store it also as the best checkpoint.
            name: store it also as checkpoint-NAME.pt.

        Raises:
            OSError: if the checkpoint cannot be written. The existing checkpoints are kept.
        """
        copies = ([BEST] if best else []) + ([f"checkpoint-{name}.pt"] if name else [])
        if self._is_kept(state["iteration"]):
            copies.append(kept_name(state["iteration"]))
        save_checkpoint(self._run_dir, state, copies=copies, again=self.saved_at == state["iteration"])
        self.saved_at = state["iteration"]
        self._due_at = time.monotonic() + SECONDS_BETWEEN


def kept_name(iteration: int) -> str:
    """Return the file name of a checkpoint that is kept for good (--keep-every)."""
    return f"{KEPT}{iteration:06d}.pt"


def save_checkpoint(run_dir: Path, state: dict[str, Any], *, copies: Iterable[str] = (), again: bool = False) -> None:
    """Write the newest checkpoint, and keep the one before it. A complete checkpoint exists at every moment.

    Args:
        run_dir: directory of the run.
        state: content of the checkpoint.
        copies: further file names of this checkpoint. They are not renamed when the next one is written.
        again: whether the newest checkpoint is of the same iteration, so that it takes its place.

    Raises:
        OSError: if the checkpoint cannot be written. The existing checkpoints are kept.
    """
    path = run_dir / NAME
    with replaced_file(path) as temporary:
        write_checkpoint(temporary, state)
        for name in copies:
            _copy(temporary, run_dir / name)
        if path.exists() and not again:
            _copy(path, run_dir / BEFORE)
    sync(run_dir)


def _copy(source: Path, target: Path) -> None:
    """Copy a file atomically. A hard link would have the same content, but `refuse_links` could not judge it."""
    with replaced_file(target) as temporary:
        shutil.copyfile(source, temporary)


def load_selected_checkpoint(
    run_dir: Path, which: str | int | Path = "last", option: str = "--checkpoint"
) -> dict[str, Any]:
    """Load one checkpoint of a run, for use of its policy. No other checkpoint takes the place of a damaged one.

    Args:
        run_dir: directory of the run.
        which: "last" for the newest checkpoint, "best" for the one with the highest value of --best-by, the number of
            an iteration, or the path of a checkpoint file. A relative path starts at the working directory or at the
            run directory.
        option: the flag that selects another checkpoint, for the error message.

    Raises:
        ConfigError: if there is no such checkpoint, or if it is damaged. The message names one that is not.
    """
    if not is_file_name(which) or is_run(run_dir):  # a file may also be beside other files of the user
        refuse_links(run_dir)
    path = _selected_path(run_dir, which)
    try:
        return load_checkpoint(path)
    except DamagedCheckpointError as error:
        other = next((other for other, _ in _undamaged((*_newest_first(run_dir), run_dir / BEST))), None)
        name = "" if other is None else other.name if option == "--checkpoint" else other
        advice = f"use another one with {option} {name}" if name else "restore it from a copy"
        raise ConfigError(f"{error}; {advice}") from error


def is_file_name(which: str | int | Path) -> bool:
    """Return whether a choice of a checkpoint (see `load_selected_checkpoint`) is the path of a file."""
    return str(which) not in ("last", "best") and not str(which).isdecimal()


def _selected_path(run_dir: Path, which: str | int | Path) -> Path:
    """Return the file that a choice names. Raises ConfigError if there is none."""
    text = str(which)
    if is_file_name(which):
        named = user_path(text, "--checkpoint").resolve()  # the user may name a link
        path = next((path for path in (named, run_dir / text) if path.is_file()), None)
        if path is None:
            raise ConfigError(f"--checkpoint {text} is not a file; name last, best, an iteration, or a checkpoint file")
        return path
    if text == "best" and (run_dir / BEST).is_file():
        return run_dir / BEST
    paths = _newest_first(run_dir)
    if not paths:
        raise no_checkpoint(run_dir)
    if text == "last":
        return paths[0]
    require(
        text != "best",
        f"{run_dir} has no best checkpoint, because the metric of --best-by had no value or was not compared yet; "
        "use --checkpoint last",
    )
    return _path_of_iteration(run_dir, int(text))


def _path_of_iteration(run_dir: Path, iteration: int) -> Path:
    """Return the checkpoint of an iteration. Raises ConfigError if it was not kept. The message lists those that were.

    The name of a checkpoint that is kept for good contains its iteration. The others have to be read.
    """
    kept = run_dir / kept_name(iteration)
    if kept.is_file():
        return kept
    found: set[int] = set()
    for path, state in _undamaged((*_newest_first(run_dir), run_dir / BEST)):
        if state["iteration"] == iteration:
            return path
        found.add(state["iteration"])
    raise ConfigError(
        f"{run_dir} has kept no checkpoint of iteration {iteration}, only of "
        f"{', '.join(map(str, sorted(found))) or 'none'}; choose one of them, or train with --keep-every"
    )


def _undamaged(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the checkpoints that can be read, with their content."""
    for path in paths:
        with suppress(ConfigError):
            state = load_checkpoint(path)
            yield path, state


def saved_iteration(run_dir: Path) -> int:
    """Return the iteration of the newest undamaged checkpoint from which a run can continue in its directory, or −1."""
    return next((state["iteration"] for _, state in _undamaged(_newest_first(run_dir))), -1)


def load_resumable_checkpoint(run_dir: Path, process_group: ProcessGroup = SINGLE_PROCESS) -> dict[str, Any]:
    """Load this rank's checkpoint of the newest iteration for which every rank has an undamaged checkpoint.

    A warning on the console names damaged checkpoints that are passed over.

    Args:
        run_dir: directory of this rank.
        process_group: the ranks.

    Raises:
        ConfigError: on all ranks, if there is none.
    """
    found: dict[int, Path] = {}
    problems: list[str] = []
    for path in _newest_first(run_dir):
        try:
            found.setdefault(load_checkpoint(path)["iteration"], path)
        except ConfigError as error:
            problems.append(str(error))
        if found and process_group.size == 1:
            break
    reason = "" if found else (problems or [str(no_checkpoint(run_dir))])[0]
    by_rank = process_group.gather_objects((sorted(found), reason))
    common = set(found).intersection(*(iterations for iterations, _ in by_rank))
    if not common:
        available = ", ".join(f"rank {rank} {iterations}" for rank, (iterations, _) in enumerate(by_rank))
        start = f"there is no iteration of which every rank has a checkpoint ({available}); "
        reasons = "; ".join(reason for _, reason in by_rank if reason)
        raise ConfigError(f"{start if process_group.size > 1 else ''}{reasons}")
    for problem in problems:
        print_warning(f"{problem}; the run continues from iteration {max(common)} ({found[max(common)].name})")
    return load_checkpoint(found[max(common)])


def _newest_first(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, the newest first: the last two, then those of --keep-every."""
    numbered = {path.stem.removeprefix(KEPT): path for path in run_dir.glob(f"{KEPT}*.pt")}
    kept = {int(number): path for number, path in numbered.items() if number.isdecimal()}  # not the user's copies
    last = [path for path in (run_dir / NAME, run_dir / BEFORE) if path.exists()]
    return last + [kept[iteration] for iteration in sorted(kept, reverse=True)]


def no_checkpoint(run_dir: Path) -> ConfigError:
    """Say why a directory has no checkpoint."""
    reason = "contains no checkpoint" if run_dir.exists() else "does not exist"
    return ConfigError(f"{run_dir} {reason}; name the directory of a run")


OTHER_ENVIRONMENT = (
    "the environment has other spaces or snapshots than when the run was started; use the same version of it, or start "
    "a new run with --init-from"
)


def check_shapes(
    what: str,
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, Sequence[int]],
    *,
    where: str = "checkpoint",
    advice: str = OTHER_ENVIRONMENT,
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
        before = tuple(found[name].shape) if name in found else "none"
        now = tuple(expected[name]) if name in expected else "none"
        require(before == now, f"{where}: {what} {name} has the shape {before}, but {now} is needed; {advice}")


def check_learner(
    learner: Mapping[str, Any], parameters: Mapping[str, Sequence[int]], obs_size: int, **context: str
) -> None:
    """Check the shapes of the weights and the moments that `Learner.state` returned, as `check_shapes` does.

    Args:
        parameters: shapes of the weights, by name.
        obs_size: number of values of an observation that are normalized.
    """
    check_shapes("parameter", learner["model"], parameters, **context)
    for name, size in (("obs_moments", obs_size), ("return_moments", 1)):
        if name in learner:  # a policy that only acts has no rewards
            check_shapes(name, learner[name], {"count": (), "mean": (size,), "m2": (size,)}, **context)
