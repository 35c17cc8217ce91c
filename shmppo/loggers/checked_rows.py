"""Rows of a CSV file with chained checksums: each row's checksum covers the row, and the checksum of the row before.

So a reader detects rows that are damaged, missing, or in another order, and a last row that was written only in part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shmppo.errors import ConfigError

ROW_CHECKSUM = "row_checksum"
"""The last column of each file with checksums."""
WEIGHTS_HASH = "weights_hash"
TEXT_COLUMNS = (WEIGHTS_HASH, ROW_CHECKSUM)
"""Columns whose values are no numbers."""
HASH_DIGITS = 16
"""Hexadecimal digits of these values."""

_LINE_END = b"\r\n"


class CheckedRows(NamedTuple):
    """The complete rows of a file."""

    rows: list[dict[str, str]]
    """Values by column."""
    lines: list[bytes]
    """The same rows as they are in the file, each with its line end."""
    torn: bool
    """Whether an incomplete last row was left out."""

    def up_to(self, iteration: int) -> CheckedRows:
        """Return the rows before the first one of a later iteration."""
        count = 0
        while count < len(self.rows) and int(self.rows[count]["iteration"]) <= iteration:
            count += 1
        return CheckedRows(self.rows[:count], self.lines[:count], False)


def header_line(columns: Sequence[str]) -> bytes:
    """Return the first line of a file."""
    return ",".join(columns).encode() + _LINE_END


def row_line(cells: Sequence[str], checksum: str) -> tuple[bytes, str]:
    """Return the line of a row, and the row's checksum.

    Args:
        cells: the values of all columns except the checksum.
        checksum: of the row before; "" for the first row.
    """
    text = ",".join(cells)
    checksum = _chained(checksum, text.encode())
    return f"{text},{checksum}".encode() + _LINE_END, checksum


def _chained(checksum: str, text: bytes) -> str:
    return hashlib.sha256(checksum.encode() + b"\n" + text).hexdigest()[:HASH_DIGITS]


def read_checked_rows(path: Path, columns: Sequence[str]) -> CheckedRows:
    """Read a file, and check the checksums of its rows.

    Args:
        path: the file.
        columns: names of its columns. The last one is ROW_CHECKSUM.

    Raises:
        ConfigError: if the file cannot be read, has other columns, or if a row before the last one is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; restore it, or move it away") from error
    header, *lines = data.split(b"\n")
    if header.removesuffix(b"\r") + _LINE_END != header_line(columns):
        raise ConfigError(
            f"{path}, line 1: these are not the columns that this version writes; restore the file, or move it away to "
            "continue without its rows"
        )
    rows: list[dict[str, str]] = []
    kept: list[bytes] = []
    checksum = ""
    for index, line in enumerate(lines):
        text, _, found = line.removesuffix(b"\r").rpartition(b",")
        checksum = _chained(checksum, text)
        if found != checksum.encode():
            rest = lines[index + 1 :]
            if rest not in ([], [b""]):
                raise ConfigError(
                    f"{path}, line {index + 2}: the row is damaged, because its checksum differs; restore the file, or "
                    "move it away to continue without its rows"
                )
            return CheckedRows(rows, kept, torn=bool(line or rest))
        rows.append(dict(zip(columns, [*text.decode().split(","), checksum], strict=True)))
        kept.append(text + b"," + found + _LINE_END)
    return CheckedRows(rows, kept, torn=False)
