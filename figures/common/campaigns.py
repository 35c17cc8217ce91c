"""Campaigns: many random cases, one row of a table each. A campaign that was stopped continues at its next case.

A row has at least the columns `case`, `outcome`, and `message`. The outcome `wrong` marks a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from figures.common.command_line import script_parser
from figures.common.paths import ROOT
from figures.common.provenance import record_provenance
from figures.common.tables import append_rows, read_rows

WRONG = "wrong"
"""The outcome of a case that shows a defect."""
Measure = Callable[[Sequence[int]], Iterable[dict[str, Any]]]
"""Returns the rows of some cases, in their order."""


def campaign_parser(description: str | None, cases: int) -> argparse.ArgumentParser:
    """Return a parser with the flags of a campaign: --cases and --only."""
    parser = script_parser(description)
    parser.add_argument("--cases", type=int, default=cases, help="length of the table at the end, in cases")
    parser.add_argument("--only", type=int, nargs="+", help="run only these cases, and write no table")
    return parser


def run_campaign(table: Path, cases: int, measure: Measure, only: Sequence[int] | None = None) -> int:
    """Run the cases that the table lacks, and append one row after each.

    Args:
        table: the CSV file.
        cases: length of the table at the end.
        measure: runs cases.
        only: run these cases instead, and print their rows without writing them.

    Returns:
        1 if a row is wrong, otherwise 0.
    """
    if only is not None:
        rows = [_printed(row) for row in measure(only)]
        return int(any(row["outcome"] == WRONG for row in rows))
    try:
        for row in measure(range(len(read_rows(table)), cases)):
            append_rows(table, [row], note=None)
            if row["outcome"] == WRONG:
                _printed(row)
    finally:
        counts = Counter(row["outcome"] for row in read_rows(table))
        if counts:
            note = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
            record_provenance(table, f"{counts.total()} cases: {note}.")
            print(f"{table.name}: {note}", flush=True)
    return int(counts[WRONG] > 0)


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row, ensure_ascii=False), flush=True)
    return row


def in_fresh_processes(
    command: Sequence[str], cases: Sequence[int], *, every: int, timeout: float, columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Run cases in processes that each handle several of them.

    Args:
        command: a module and its arguments. It prints a row in JSON after each of the cases on its command line.
        cases: the cases.
        every: cases per process.
        timeout: seconds per case, after which the process and its children are killed.
        columns: the columns of a row. A case whose process ends without a row has only case, outcome, and message.

    Yields:
        The rows.
    """
    left = list(cases)
    while left:
        chunk = left[:every]
        with _CaseProcess([*command, *map(str, chunk)], timeout) as process:
            for row in process.rows():
                left.remove(row["case"])
                yield row
        if process.failure and left:
            message = {"case": left.pop(0), "outcome": WRONG, "message": process.failure}
            yield {column: message.get(column, "") for column in columns}


class _CaseProcess:
    """A process that prints rows. It is killed with its children if a row takes too long."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self.failure = ""
        self._timeout, self._hung = timeout, False
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self) -> _CaseProcess:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._kill()
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if code or self._hung:
            self.failure = f"hung for {self._timeout:g} s" if self._hung else f"the process ended with code {code}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows. Lines that are no rows come from libraries and are skipped."""
        assert self._process.stdout is not None
        while True:
            timer = threading.Timer(self._timeout, self._end_hang)
            timer.start()
            line = self._process.stdout.readline()
            timer.cancel()
            if not line:
                self._process.wait()
                return
            if line.startswith('{"case": '):
                yield json.loads(line)

    def _end_hang(self) -> None:
        self._hung = True
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
