"""What a run has recorded: checked, cut off after a checkpoint, or copied when the run is resumed."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

from shmppo.errors import ConfigError
from shmppo.ppo.kl_profile import PROFILE_DIRECTORY, TABLE
from shmppo.storage.checkpoint import BEST
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.storage.run_directory import EVALUATIONS, METRICS
from shmppo.utils.files import replaced_file


def check_metrics(run_dir: Path, metrics_bytes: int) -> None:
    """Raise ConfigError if metrics.csv is shorter than it was when a checkpoint was written."""
    path = run_dir / METRICS
    size = path.stat().st_size if path.is_file() else 0
    if size < metrics_bytes:
        raise ConfigError(
            f"{path} has {size} bytes, but it had {metrics_bytes} when the checkpoint was written; restore it from a "
            "copy, or start a new run with --init-from"
        )


def remove_later(run_dir: Path, iteration: int, metrics_bytes: int) -> None:
    """Remove the rows and KL profiles of iterations after a checkpoint, because they are trained again.

    Args:
        run_dir: directory of the run.
        iteration: of the checkpoint.
        metrics_bytes: size of metrics.csv when it was written. Evaluations are written later than their iteration, so
            eval.csv has no such size.

    Raises:
        OSError: if the files cannot be changed.
    """
    if metrics_bytes:
        os.truncate(run_dir / METRICS, metrics_bytes)
    else:
        (run_dir / METRICS).unlink(missing_ok=True)
    for name in (EVALUATIONS, TABLE):
        if (run_dir / name).is_file():
            _remove_later_rows(run_dir / name, iteration)
    for path in (run_dir / PROFILE_DIRECTORY).glob("*.npz"):
        if int(path.stem) > iteration:
            path.unlink()


def _remove_later_rows(path: Path, iteration: int) -> None:
    """Remove the rows of later iterations, and a last line that was written only in part."""
    header, *rows = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] or [b""]
    kept = [row for row in rows if int(row.partition(b",")[0]) <= iteration]
    if kept:
        with replaced_file(path) as temporary:
            temporary.write_bytes(b"".join([header, *kept]))
    else:
        path.unlink()


def copy_history(source: Path, target: Path, checkpoint: dict[str, Any]) -> None:
    """Copy what a run has recorded. The new run then removes what is later than its checkpoint with `remove_later`.

    Args:
        source: directory of the run.
        target: the new directory.
        checkpoint: content of the checkpoint. If the best checkpoint of the run is newer, it is not copied, and the
            best return is reset, so that the first checkpoint in the new directory becomes the best one.
    """
    for name in (METRICS, EVALUATIONS, TABLE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / PROFILE_DIRECTORY).is_dir():
        shutil.copytree(source / PROFILE_DIRECTORY, target / PROFILE_DIRECTORY)
    try:
        is_older = load_checkpoint(source / BEST)["iteration"] <= checkpoint["iteration"]
    except ConfigError:  # there is none
        is_older = False
    if is_older:
        shutil.copyfile(source / BEST, target / BEST)
    else:
        checkpoint["best_return"] = -math.inf
