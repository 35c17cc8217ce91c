"""Rows with chained checksums: which damages are detected, and which rows are kept when a run resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shmppo.errors import ConfigError
from shmppo.loggers.checked_rows import ROW_CHECKSUM, WEIGHTS_HASH, header_line, read_checked_rows
from shmppo.loggers.metrics import MetricsFile

COLUMNS = ("iteration", "approx_kl", WEIGHTS_HASH, ROW_CHECKSUM)


def written(path: Path, rows: int = 5, first: int = 1) -> bytes:
    """Write a table of rows to `path`; returns its content. first: iteration of the first new row."""
    table = MetricsFile(path, first - 1, COLUMNS)
    for iteration in range(first, first + rows):
        table.write({"iteration": iteration, "approx_kl": iteration / 8}, f"{iteration:016x}")
    table.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written(tmp_path / "metrics.csv")
    return tmp_path / "metrics.csv"


def test_rows_are_read_as_they_were_written(path: Path) -> None:
    found = read_checked_rows(path, COLUMNS)
    assert [row["approx_kl"] for row in found.rows] == ["0.125", "0.25", "0.375", "0.5", "0.625"]
    assert [row[WEIGHTS_HASH] for row in found.rows] == [f"{i:016x}" for i in range(1, 6)]
    assert len({row[ROW_CHECKSUM] for row in found.rows}) == 5
    assert not found.torn
    assert header_line(COLUMNS) + b"".join(found.lines) == path.read_bytes()


def test_every_cut_of_the_last_row_is_dropped_and_the_run_writes_it_again(path: Path) -> None:
    whole = path.read_bytes()
    last = whole[: whole[:-2].rindex(b"\n") + 1]
    for length in range(len(last), len(whole)):
        path.write_bytes(whole[:length])
        complete = length >= len(whole) - 2  # only the line end is cut
        found = read_checked_rows(path, COLUMNS)
        assert (len(found.rows), found.torn) == ((5, False) if complete else (4, length > len(last)))
        assert written(path, rows=1 if not complete else 0, first=5 if not complete else 6) == whole


def test_rows_of_later_iterations_are_removed_and_the_chain_continues(path: Path) -> None:
    whole = path.read_bytes()
    assert written(path, rows=3, first=3) == whole


def test_a_damaged_row_is_named_with_its_line(path: Path) -> None:
    whole = path.read_bytes()
    for old, new, line in (
        (b"0.25", b"0.26", 3),
        (b"1,0.125", b"1,0.12", 2),
        (b"\r\n3,", b"3,", 3),
        (b"4,0.5,", b"4,\xff\xfe,", 5),
    ):
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(
            ConfigError, match=rf"^{path}, line {line}: the row is damaged, because its checksum differs; "
        ):
            MetricsFile(path, 5, COLUMNS)


@pytest.mark.parametrize("change", ["removed", "twice", "exchanged"])
def test_rows_that_are_removed_repeated_or_exchanged_are_detected(change: str, path: Path) -> None:
    header, *rows = path.read_bytes().splitlines(keepends=True)
    changed = {"removed": [0, 2, 3, 4], "twice": [0, 1, 1, 2, 3, 4], "exchanged": [0, 2, 1, 3, 4]}[change]
    path.write_bytes(header + b"".join(rows[i] for i in changed))
    with pytest.raises(ConfigError, match="line 4" if change == "twice" else "line 3"):
        read_checked_rows(path, COLUMNS)


@pytest.mark.parametrize(
    "content",
    [b"", b"1,0.5\r\n2,0.25\r\n", b"\xff\x00garbage", b"iteration,approx_kl,weights_hash,a,row_checksum\r\n"],
)
def test_another_header_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{path}, line 1: these are not the columns that this version writes; "):
        MetricsFile(path, 3, COLUMNS)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path} cannot be read: Is a directory; restore it"):
        read_checked_rows(tmp_path, COLUMNS)


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_detected_or_harmless(count: int, path: Path) -> None:
    whole, before = path.read_bytes(), read_checked_rows(path, COLUMNS)
    for bit in np.random.default_rng(0).integers(len(whole) * 8, size=count).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = read_checked_rows(path, COLUMNS)
        except ConfigError:
            continue
        assert found.torn or found == before
