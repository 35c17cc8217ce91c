"""Measure the time per environment step for several sizes of a job.

    python -m figures.cost.measure

The job is task A with one size changed at a time. A minibatch always has 512 steps. Run this on a machine without
other load. Writes cost.csv.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.common.command_line import script_parser
from figures.common.jobs import TASK_A
from figures.common.tables import write_rows
from shmppo.bench.measured_run import measured_run
from shmppo.config.train_config import TrainConfig
from shmppo.utils.phase_timer import LEARNING, SAMPLING

TABLE = Path(__file__).with_name("cost.csv")
SIZES = {
    "num_envs": (16, 32, 64, 128, 256, 512),
    "rollout_steps": (32, 64, 128, 256, 512),
    "hidden_size": (32, 64, 128, 256, 512),
}
MINIBATCH_STEPS = 512
MIN_ITERATIONS = 8


def configuration(name: str, value: int) -> TrainConfig:
    """Return task A with one field changed."""
    fields = TASK_A | {name: value}
    minibatches = max(1, fields["num_envs"] * fields["rollout_steps"] // MINIBATCH_STEPS)
    return TrainConfig(**fields | {"minibatches": minibatches}, workers=2, quiet=True)


def measure(name: str, value: int, steps: int) -> dict[str, Any]:
    """Train for about this many steps and return the row of the table."""
    config = configuration(name, value)
    run = measured_run(config, max(MIN_ITERATIONS, steps // config.batch_steps))
    row: dict[str, Any] = {"size": name, "value": value, "steps_per_second": round(run.median("steps_per_second"))}
    for part, phases in (("sampling", SAMPLING), ("learning", LEARNING)):
        seconds = sum(run.median(f"{phase}_seconds") for phase in phases)
        row[f"{part}_microseconds"] = f"{seconds / config.batch_steps * 1e6:.4g}"
    return row


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--steps", type=int, default=40_000, help=f"environment steps of a run, at least {MIN_ITERATIONS} iterations"
    )
    options = parser.parse_args()
    rows = []
    for name, values in SIZES.items():
        for value in values:
            rows.append(measure(name, value, options.steps))
            print(rows[-1], flush=True)
    write_rows(TABLE, rows, "Microseconds per environment step, two workers.")


if __name__ == "__main__":
    main()
