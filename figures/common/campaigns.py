"""Campaigns: many random cases, one row of a table each. A campaign that was stopped continues at its next case.

A row has at least the columns `case`, `outcome`, and `message`. The outcome `wrong` marks a defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from figures.common.provenance import record_provenance
from figures.common.tables import append_rows, read_rows

WRONG = "wrong"
"""The outcome of a case that shows a defect."""


def run_campaign(
    table: Path, cases: int, measure: Callable[[int], dict[str, Any]], *, only: Sequence[int] = (), parallel: int = 1
) -> int:
    """Run the cases that the table lacks, and append one row after each.

    Args:
        table: the CSV file.
        cases: length of the table at the end.
        measure: runs a case, and returns its row.
        only: run these cases instead, and print their rows without writing them.
        parallel: cases at the same time.

    Returns:
        1 if a row is wrong, otherwise 0.
    """
    wrong = 0
    with ThreadPoolExecutor(parallel) as pool:
        for row in pool.map(measure, only or range(len(read_rows(table)), cases)):
            wrong += row["outcome"] == WRONG
            if not only:
                append_rows(table, [row], note=None)
            if only or row["outcome"] == WRONG:
                print(row, flush=True)
    if only:
        return int(wrong > 0)
    counts = Counter(row["outcome"] for row in read_rows(table))
    note = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    record_provenance(table, f"{counts.total()} cases: {note}.")
    print(f"{table.name}: {note}", flush=True)
    return int(counts[WRONG] > 0)
