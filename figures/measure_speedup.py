"""S(2) and E(2), against the fastest single process and against two of them at once: figures/data/speedup.csv.

    python figures/measure_speedup.py

Task A. All contenders run throughout and take turns of a few seconds, so that each row is one moment of the machine.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

from provenance import DATA, record
from turns import started

TASK = [
    "--env",
    "HalfCheetah-v5",
    "--num-envs",
    "16",
    "--rollout-steps",
    "128",
    "--encoder-sizes",
    "128",
    "--hidden-size",
    "128",
    "--epochs",
    "4",
    "--minibatches",
    "4",
    "--seq-len",
    "16",
    "--total-steps",
    "1000000000",
    "--worker-timeout",
    "3600",
    "--rank-timeout",
    "3600",
]
ONE = [*TASK, "--workers", "0", "--grad-shards", "1"]
RANK = [*TASK, "--workers", "0", "--num-envs", "8"]

CONTENDERS = {
    "one process": [ONE],
    "two separate runs": [ONE, ONE],
    "two workers": [[*TASK, "--workers", "2"]],
    "two workers, central": [[*TASK, "--workers", "2", "--learning", "central"]],
    "two ranks": [RANK, RANK],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--out", type=Path, default=DATA / "speedup.csv")
    options = parser.parse_args()
    chosen = {name: CONTENDERS[name] for name in options.only}
    rows = []
    with tempfile.TemporaryDirectory() as directory, started(chosen, Path(directory)) as running:
        for _ in range(options.turns):
            rows.append({name: contender.turn(options.seconds) for name, contender in running.items()})
            print({name: round(rate) for name, rate in rows[-1].items()}, flush=True)
    with open(options.out, "w", newline="") as file:
        writer = csv.DictWriter(file, list(chosen))
        writer.writeheader()
        writer.writerows({name: round(rate) for name, rate in row.items()} for row in rows)
    record(options.out, "Steps per second in each turn; a row is one moment of the machine.")
    for name in chosen:
        ratios = [
            f"{statistics.median(row[name] / row[base] for row in rows):.3f} of {base}"
            for base in ("one process", "two separate runs")
            if base in chosen
        ]
        print(f"{name:<22}{statistics.median(row[name] for row in rows):8,.0f} steps/s, {', '.join(ratios)}")


if __name__ == "__main__":
    main()
