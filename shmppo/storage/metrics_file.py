"""The tables of a run: append rows while it trains, and remove the rows after a checkpoint when it resumes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shmppo.errors import ConfigError
from shmppo.loggers.metrics import WEIGHTS_HASH
from shmppo.ppo.kl_profile import PROFILE_DIRECTORY, TABLE
from shmppo.storage.run_directory import EVALUATIONS, METRICS, saving
from shmppo.utils.files import replaced_file


class MetricsFile:
    """The file metrics.csv or eval.csv."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Write the header, if the file does not exist.

        Raises:
            OSError: if it cannot be written.
        """
        self._path, self._columns = path, columns
        if not path.exists():
            with replaced_file(path) as temporary:
                temporary.write_bytes(",".join(columns).encode() + b"\r\n")

    def write(self, row: dict[str, float], weights_hash: str = "") -> None:
        """Append a row.

        Args:
            row: a value for every column, except WEIGHTS_HASH.
            weights_hash: the value of WEIGHTS_HASH, if the file has this column.

        Raises:
            SaveError: if it cannot be written, also because the file or its directory was removed.
        """
        cells = [weights_hash if name == WEIGHTS_HASH else f"{row[name]:.10g}" for name in self._columns]
        line = ",".join(cells).encode() + b"\r\n"
        with saving(self._path.parent), open(self._path, "r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            while line:  # if the disk becomes full, a part is written
                line = line[file.write(line) :]


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
