"""Measure how other processes on the machine slow a run down: task A with workers and without, beside busy processes.

    python -m figures.load.measure

With each number of busy processes, the runs execute interleaved, in time slices. Adds one row per number to load.csv:
the median steps per second of each run, and the ratio of two workers to none.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.interleaved import add_slice_flags, rounds, started
from figures.common.jobs import ENDLESS, TASK_A, flags
from figures.common.tables import append_rows
from shmppo.utils.machine import git_revision, processor, usable_cores

TABLE = Path(__file__).with_name("load.csv")
WORKERS = (0, 1, 2)
BUSY = "while True: pass"


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that need a core each and are pinned to none."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one row per number of busy processes."""
    commands = {str(w): [flags(TASK_A | ENDLESS | {"workers": w, "grad_shards": 2})] for w in WORKERS}
    with tempfile.TemporaryDirectory() as directory, started(commands, Path(directory)) as groups:
        for busy in options.busy:
            with busy_processes(busy):
                rates = list(rounds(groups, options.slices, options.seconds))
            ratios = [rate["2"] / rate["0"] for rate in rates]
            yield {
                "commit": (git_revision() or "installed")[:7],
                "busy": busy,
                **{f"workers_{w}": round(statistics.median(rate[str(w)] for rate in rates)) for w in WORKERS},
                "ratio": round(statistics.median(ratios), 3),
                "lowest": round(min(ratios), 3),
                "highest": round(max(ratios), 3),
                "rounds": len(rates),
                "processor": processor(),
                "cores": usable_cores(),
            }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="numbers of busy processes")
    add_slice_flags(parser, 5, 5.0)
    for row in measure(parser.parse_args()):
        append_rows(TABLE, [row], note=None)
        print(row, flush=True)


if __name__ == "__main__":
    main()
