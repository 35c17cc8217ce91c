"""The new directory in which a run is resumed from an older checkpoint. It gets the history up to that checkpoint."""

from __future__ import annotations

import csv
import math
import shutil
from pathlib import Path
from typing import Any

from shmppo.config.schemas import config_digest
from shmppo.errors import ConfigError
from shmppo.loggers.checked_rows import header_line, read_checked_rows
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY
from shmppo.ppo.kl_profile import PROFILE_DIRECTORY, TABLE
from shmppo.storage.checkpoint import BEST
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.storage.run_directory import CONFIG, EVALUATIONS, METRICS


def copy_history(source: Path, target: Path, checkpoint: dict[str, Any]) -> None:
    """Copy what a run had recorded when it saved a checkpoint: metrics, evaluations, KL profiles, best checkpoint.

    If its best checkpoint is newer, the first checkpoint in the new directory becomes the best one.

    Args:
        source: directory of the run.
        target: the new directory.
        checkpoint: content of the checkpoint. Its best return is reset if the best checkpoint is newer.
    """
    iteration = checkpoint["iteration"]
    for name, columns in ((METRICS, GLOSSARY), (EVALUATIONS, EVALUATION_GLOSSARY)):
        if (source / name).is_file():
            kept = read_checked_rows(source / name, tuple(columns)).up_to(iteration)
            (target / name).write_bytes(b"".join([header_line(tuple(columns)), *kept.lines]))
    if (source / TABLE).is_file():
        _copy_rows(source / TABLE, target / TABLE, iteration)
    for path in (source / PROFILE_DIRECTORY).glob("*.npz"):
        if int(path.stem) <= iteration:
            (target / PROFILE_DIRECTORY).mkdir(exist_ok=True)
            shutil.copyfile(path, target / PROFILE_DIRECTORY / path.name)
    if _iteration_of(source / BEST) <= iteration:
        digest = config_digest(target / CONFIG)
        write_checkpoint(target / BEST, load_checkpoint(source / BEST) | {"config_digest": digest})
    else:
        checkpoint["best_return"] = -math.inf


def _copy_rows(source: Path, target: Path, iteration: int) -> None:
    """Copy the rows of a table up to an iteration. An incomplete last row is not copied."""
    with open(source, newline="") as file, open(target, "w", newline="") as copy:
        reader = csv.DictReader(file)
        writer = csv.DictWriter(copy, reader.fieldnames or ())
        writer.writeheader()
        complete = (row for row in reader if None not in row.values())
        writer.writerows(row for row in complete if int(row["iteration"]) <= iteration)


def _iteration_of(path: Path) -> float:
    """Return the iteration of a checkpoint. Infinity if it does not exist or is damaged."""
    try:
        return float(load_checkpoint(path)["iteration"])
    except ConfigError:
        return math.inf
