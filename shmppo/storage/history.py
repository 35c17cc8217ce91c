"""What a run has recorded: checked, cut off after a checkpoint, or copied when the run is resumed."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from shmppo.config.checks import require
from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.loggers.metrics import TIMED_COLUMNS
from shmppo.storage.checkpoint import BEST
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.storage.run_directory import DIRECTORIES, EPISODES, EVALUATIONS, METRICS, SUMMARY, TABLES
from shmppo.utils.files import open_file


def check_metrics(run_dir: Path, iteration: int) -> None:
    """Raise ConfigError if metrics.csv lacks an iteration before a checkpoint. iteration: of the checkpoint."""
    path = run_dir / METRICS
    rows, _ = _rows_until(path, iteration) if path.is_file() else (0, 0)
    require(
        rows == iteration,
        f"{path} has {rows} of the {iteration} rows that it had when the checkpoint was written; restore it from "
        "a copy, or start a new run with --init-from",
    )


def remove_later(run_dir: Path, iteration: int, *, evaluated: int) -> None:
    """Remove the rows and files of iterations after a checkpoint, because they are trained again, and summary.json.

    Args:
        run_dir: directory of the run.
        iteration: of the checkpoint. 0: nothing is kept.
        evaluated: the last iteration whose evaluation is kept.

    Raises:
        OSError: if the files cannot be changed.
    """
    for name, last in {METRICS: iteration, EVALUATIONS: evaluated, **dict.fromkeys(TABLES, iteration)}.items():
        path = run_dir / name
        if path.is_file():
            rows, end = _rows_until(path, last)
            if rows:
                with open_file(path, "r+b") as file:
                    file.truncate(end)
            else:
                path.unlink()
    for path in [path for name in DIRECTORIES for path in (run_dir / name).glob("*")]:
        if path.stem.isdecimal() and int(path.stem) > iteration:
            path.unlink()
    (run_dir / SUMMARY).unlink(missing_ok=True)  # its receipt is that of other rows


def _rows_until(path: Path, iteration: int) -> tuple[int, int]:
    """Return the number of rows of a table up to an iteration, and where they end. Iterations never decrease.

    A line that was written only in part does not count.

    Raises:
        ConfigError: if the file is damaged.
    """
    rows = -1  # the header is none
    end = 0
    with open_file(path, "rb") as file:
        for line in file:
            try:
                if not line.endswith(b"\n") or (rows >= 0 and int(line.partition(b",")[0]) > iteration):
                    break
            except ValueError as error:
                raise ConfigError(f"{path} is damaged ({error}); restore it from a copy") from error
            rows, end = rows + 1, end + len(line)
    return max(rows, 0), end


def recorded_tables(run_dir: Path) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of the rows of each iteration in metrics.csv, eval.csv, and episodes.csv, by file.

    Columns that depend on the clock do not count, and neither does NaN at the end of a row, because a file gets columns
    that its first rows did not have. The digest of the header has the name iteration.

    Raises:
        OSError, ValueError, IndexError, csv.Error: if a file cannot be read, or is damaged.
    """
    return {name: _digests(run_dir / name) for name in (METRICS, EVALUATIONS, EPISODES) if (run_dir / name).is_file()}


def _digests(path: Path) -> dict[str, str]:
    with open_file(path, "r", newline="", encoding="utf-8") as file:
        rows = csv.reader(line for line in file if line.endswith("\n"))
        header = next(rows, [])
        kept = [i for i, name in enumerate(header) if name not in TIMED_COLUMNS]
        digests: dict[str, Any] = {}
        for iteration, group in itertools.groupby(itertools.chain([header], rows), lambda row: row[0]):
            text = "".join([",".join([row[i] for i in kept]) + "\n" for row in group])
            text = re.sub(r"(,nan)+$", "", text, flags=re.MULTILINE)
            digests.setdefault(iteration, hashlib.sha256()).update(text.encode())
    return {iteration: digest.hexdigest() for iteration, digest in digests.items()}


def receipt(options: dict[str, Any], tables: dict[str, dict[str, str]]) -> str:
    """Return the SHA-256 of what a run has recorded: its options, metrics, hashes of states, evaluations, and episodes.

    It does not depend on the clock, so a repetition has the same one.

    Args:
        options: as in config.json.
        tables: from `recorded_tables`.
    """
    names = {*fields_with(TrainConfig, resumable=False)} - {"run_dir"}
    content = [{name: options[name] for name in names & options.keys()}, tables]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def copy_history(source: Path, target: Path, checkpoint: dict[str, Any]) -> None:
    """Copy what a run has recorded. The new run then removes later rows and files with `remove_later`.

    Args:
        source: directory of the run.
        target: the new directory.
        checkpoint: content of the checkpoint. If the best checkpoint of the run is newer, it is not copied, and the
            best value is reset, so that the weights of the next comparison become the best ones.
    """
    for name in (METRICS, EVALUATIONS, *TABLES):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for name in DIRECTORIES:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)  # of a resume that could not start
    try:
        is_older = load_checkpoint(source / BEST)["iteration"] <= checkpoint["iteration"]
    except ConfigError:  # there is none
        is_older = False
    if is_older:
        shutil.copyfile(source / BEST, target / BEST)
    else:
        checkpoint["best_value"] = -math.inf
