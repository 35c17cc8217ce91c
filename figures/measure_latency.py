"""More workers than cores, on steps that wait instead of computing: figures/data/latency.csv.

    python figures/measure_latency.py --workers 1 2 4 8 16 32

One environment per worker (fixed work each), steps of 10 ms in the mean: always, exponentially distributed, or with a
heavy tail. What sampling loses from W = 1 on is the cost of lock-step itself, and with the tails the stragglers'. On a
quiet machine.
"""

from __future__ import annotations

import argparse
import csv
from typing import Any

from provenance import DATA, record

from shmppo.bench.scaling import COLUMNS, Scaling, add_scaling, measure, plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--tails", nargs="+", default=["none", "exponential", "pareto"])
    parser.add_argument("--iterations", type=int, default=13)
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    for tail in options.tails:
        scaling = Scaling(
            env="shmppo.testing:Latency",
            env_kwargs={"mean": 0.01, "tail": tail},
            num_envs=max(options.workers),
            workers=tuple(options.workers),
            learning=("sharded",),
            modes=("weak",),
            envs_per_worker=1,
            minibatches=max(options.workers),  # so that each worker adds one, of two shards
            grad_shards=2,
        )
        rows = [
            {"mode": mode, "learning": learning} | measure(config, options.iterations)
            for mode, learning, config in plan(scaling)
        ]
        add_scaling(rows)
        table += [{"tail": tail} | row for row in rows]
        print(tail, [f"{row['workers']:.0f}: {row['collect_efficiency']:.2f}" for row in rows], flush=True)
    with open(DATA / "latency.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ("tail", *COLUMNS))
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in table)
    record(DATA / "latency.csv")


if __name__ == "__main__":
    main()
