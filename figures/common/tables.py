"""Tables of measured numbers in CSV files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures.common.provenance import record_provenance

Row = Mapping[str, Any]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a table; an empty list if the file does not exist."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row], note: str | None = "") -> None:
    """Write a table.

    Args:
        path: the CSV file.
        rows: all with the columns of the first one.
        note: for the provenance, which is written beside the table. None: do not write it.
    """
    _write(path, rows, "w")
    if note is not None:
        record_provenance(path, note)


def append_rows(path: Path, rows: Sequence[Row], note: str | None = "") -> None:
    """Append rows to a table, or create it. The arguments are those of `write_rows`.

    Raises:
        ValueError: if the table has other columns than the rows.
    """
    _write(path, rows, "a")
    if note is not None:
        record_provenance(path, note)


def rows_with(path: Path, key: Row) -> list[dict[str, str]]:
    """Return the rows of a table that have these values."""
    return [row for row in read_rows(path) if all(row[name] == str(value) for name, value in key.items())]


def has_row(path: Path, key: Row) -> bool:
    """Return whether the table has a row with these values."""
    return bool(rows_with(path, key))


def distinct(rows: Sequence[Mapping[str, str]], column: str) -> str:
    """Return the distinct values of a column as text, sorted, separated by commas."""
    return ", ".join(sorted({row[column] for row in rows}))


def _columns(path: Path) -> list[str]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file).fieldnames or [])


def _write(path: Path, rows: Sequence[Row], mode: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = mode == "w" or not path.exists()
    if not new and _columns(path) != list(rows[0]):
        raise ValueError(f"{path} has other columns, so it is of an earlier version; remove it to measure again")
    with open(path, mode, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)
