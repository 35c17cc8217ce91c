"""Measure the speed-up over workers on task A, and the time to a return of 500.

    python -m figures.scaling.measure --workers 1 2 4 --repetitions 3

This runs `python -m shmppo.bench scaling`. Run it on a machine without other load. Writes scaling.csv and
scaling-curves.csv.
"""

from __future__ import annotations

from pathlib import Path

from figures.common.bench_scaling import bench_scaling
from figures.common.command_line import script_parser
from figures.common.jobs import TASK_A, flags
from figures.common.tables import write_rows

TABLE = Path(__file__).with_name("scaling.csv")
CURVES = TABLE.with_name("scaling-curves.csv")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=23)
    parser.add_argument("--total-steps", type=int, default=400_000, help="length of the runs to the target return")
    options = parser.parse_args()
    fields = TASK_A | {
        "total_steps": options.total_steps,
        "target_return": 500.0,
        "workers": tuple(options.workers),
        "repetitions": options.repetitions,
        "iterations": options.iterations,
    }
    rows, curves = bench_scaling(flags(fields))
    write_rows(CURVES, curves, note=None)
    write_rows(TABLE, rows, f"Medians of {options.repetitions} interleaved runs.")


if __name__ == "__main__":
    main()
