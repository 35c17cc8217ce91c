"""What a step costs over the sizes of a job: figures/data/cost.csv.

    python figures/measure_cost.py

Task A with one size changed at a time; steps of a minibatch stay 512, so that only the size itself changes. On a quiet
machine.
"""

from __future__ import annotations

import argparse
import csv

from provenance import DATA, record

from shmppo.bench.measured_run import measured_run
from shmppo.config.train_config import TrainConfig
from shmppo.utils.phase_timer import LEARNING, SAMPLING

SIZES = {
    "num_envs": (16, 32, 64, 128, 256, 512),
    "rollout_steps": (32, 64, 128, 256, 512),
    "hidden_size": (32, 64, 128, 256, 512),
}
STEPS = 512  # of a minibatch


def configuration(**changes: int) -> TrainConfig:
    sizes = {"num_envs": 16, "rollout_steps": 128, "hidden_size": 128} | changes
    return TrainConfig(
        env="HalfCheetah-v5", encoder_sizes=(128,), epochs=4, seq_len=16, workers=2, quiet=True,
        minibatches=max(1, sizes["num_envs"] * sizes["rollout_steps"] // STEPS), **sizes,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000, help="of a run, at least 8 iterations")
    options = parser.parse_args()
    path = DATA / "cost.csv"
    with open(path, "w", newline="") as file:
        writer = None
        for name, values in SIZES.items():
            for value in values:
                config = configuration(**{name: value})
                run = measured_run(config, max(8, options.steps // config.batch_steps))
                microseconds = {
                    part: sum(run.median(f"{phase}_seconds") for phase in phases) / config.batch_steps * 1e6
                    for part, phases in (("sampling", SAMPLING), ("learning", LEARNING))
                }
                rate = run.median("steps_per_second")
                row = {"size": name, "value": value, "steps_per_second": round(rate)}
                row |= {f"{part}_microseconds": f"{cost:.4g}" for part, cost in microseconds.items()}
                if writer is None:
                    writer = csv.DictWriter(file, list(row))
                    writer.writeheader()
                writer.writerow(row)
                print(row, flush=True)
    record(path, "Microseconds per environment step, two workers.")


if __name__ == "__main__":
    main()
