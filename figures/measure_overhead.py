"""What survival costs: figures/data/overhead.csv.

    python figures/measure_overhead.py

Pairs of runs in one sitting, interleaved: the default (episodes in progress are kept for replay, a checkpoint is saved
every minute) and the same with an action log of one step and no checkpoint but those of start and end. The runs are
long enough for one checkpoint by the clock. The weights must be the same.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import tempfile
from pathlib import Path

from shmppo.config import TrainConfig
from shmppo.machine import processor
from shmppo.train import train

DATA = Path(__file__).parent / "data"
BASE = TrainConfig(
    env="HalfCheetah-v5", num_envs=16, rollout_steps=128, minibatches=4, epochs=4, seq_len=16, hidden_size=128,
    encoder_sizes=(128,), workers=2, total_steps=16 * 128 * 450, quiet=True,
)  # fmt: skip
KINDS = {
    "survives": dataclasses.replace(BASE, checkpoint_minutes=1.0),
    "bare": dataclasses.replace(BASE, checkpoint_minutes=1e6, replay_limit=1),
}


def steps_per_second(config: TrainConfig) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as directory:
        summary = train(dataclasses.replace(config, run_dir=str(Path(directory) / "run")))
    return summary["steps_per_second"], summary["weights_sha256"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for pair in range(options.pairs):
        order = list(KINDS) if pair % 2 == 0 else list(reversed(KINDS))
        for kind in order:
            rate, weights = steps_per_second(KINDS[kind])
            rows.append({"pair": pair, "kind": kind, "steps_per_second": round(rate, 1), "weights": weights[:16]})
            print(rows[-1], flush=True)
    with open(DATA / "overhead.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    rates = {kind: [r["steps_per_second"] for r in rows if r["kind"] == kind] for kind in KINDS}
    ratios = [b / s - 1 for s, b in zip(rates["survives"], rates["bare"], strict=True)]
    print(f"{processor()}: overhead {statistics.median(ratios):+.2%} (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
