"""The benchmark `python -m shmppo.bench scaling`, run from a script."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures.common.paths import ROOT
from figures.common.tables import read_rows

Rows = list[dict[str, str]]


def bench_scaling(arguments: Sequence[str]) -> tuple[Rows, Rows]:
    """Run the benchmark with these flags.

    Returns:
        The rows of its table, and the rows of its learning curves (empty without --target-return).
    """
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "scaling"
        command = [sys.executable, "-m", "shmppo.bench", "scaling", *arguments, "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True)
        return read_rows(out.with_name("scaling.csv")), read_rows(out.with_name("scaling-curves.csv"))
