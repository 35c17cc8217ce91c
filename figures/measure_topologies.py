"""Central, sharded and decentralised learning of task A on one total batch: figures/data/topologies.csv.

    python figures/measure_topologies.py --repetitions 3

It is `python -m shmppo.bench topologies` of that task; medians of repetitions, one after the other. On a quiet machine.
"""

from __future__ import annotations

import argparse
import csv
from statistics import median

from provenance import DATA, record

from shmppo.bench_topologies import Topologies, topologies

TASK_A = Topologies(
    env="HalfCheetah-v5", num_envs=16, rollout_steps=128, hidden_size=128, encoder_sizes=(128,), epochs=4,
    minibatches=4, seq_len=16, iterations=23,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    repetitions = [topologies(TASK_A) for _ in range(options.repetitions)]
    path = DATA / "topologies.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(repetitions[0][0]))
        writer.writeheader()
        for rows in zip(*repetitions, strict=True):
            numbers = {name: median(row[name] for row in rows) for name in rows[0] if name != "topology"}
            writer.writerow({"topology": rows[0]["topology"]} | {k: f"{v:.6g}" for k, v in numbers.items()})
    record(path, f"Medians of {options.repetitions} interleaved runs.")
    print(path.read_text(), end="")


if __name__ == "__main__":
    main()
