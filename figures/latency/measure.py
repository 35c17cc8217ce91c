"""Measure what lock-step costs with more workers than cores, on environment steps that sleep instead of computing.

    python -m figures.latency.measure --workers 1 2 4 8 16 32

Each worker has one environment, so the work per worker is fixed. A step takes 10 ms on average: always, exponentially
distributed, or with a heavy tail. With constant times, the loss of sampling efficiency over one worker is the cost of
the lock-step itself. With random times, the wait for the slowest worker adds to it. Run this on a machine without other
load. Writes latency.csv.
"""

from __future__ import annotations

from pathlib import Path

from figures.common.bench_scaling import bench_scaling
from figures.common.command_line import script_parser
from figures.common.jobs import flags
from figures.common.tables import write_rows

TABLE = Path(__file__).with_name("latency.csv")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--tails", nargs="+", default=["none", "exponential", "pareto"])
    parser.add_argument("--iterations", type=int, default=13)
    options = parser.parse_args()
    most = max(options.workers)
    rows = []
    for tail in options.tails:
        fields = {
            "env": "shmppo.testing:Latency",
            "env_kwargs": {"mean": 0.01, "tail": tail},
            "num_envs": most,
            "workers": tuple(options.workers),
            "learning": "sharded",
            "modes": "weak",
            "envs_per_worker": 1,
            "minibatches": most,  # the benchmark keeps the steps per minibatch: one minibatch per worker
            "grad_shards": 2,
            "iterations": options.iterations,
        }
        table, _ = bench_scaling(flags(fields))
        rows += [{"tail": tail} | row for row in table]
    write_rows(TABLE, rows)


if __name__ == "__main__":
    main()
