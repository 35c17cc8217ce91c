"""Measure four ranks, one of them five times slower than the others, with and without preemption.

    python -m figures.ranks_preemption.measure --iterations 110

The environments sleep, so four ranks can share two cores. Writes ranks_preemption.csv.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from figures.common.command_line import script_parser
from figures.common.ranks import SLEEPING_JOB, train_ranks
from figures.common.tables import write_rows

TABLE = Path(__file__).with_name("ranks_preemption.csv")
RANKS = 4
FRACTION = 0.6
RATE_ITERATIONS = 23  # length of the run without preemption: enough to measure its rate, too short to learn


def measure(fraction: float | None, iterations: int) -> dict[str, Any]:
    """Train with this --preempt-fraction (None: without) and return the row of the table."""
    fields = SLEEPING_JOB | {"env_kwargs": {"seconds": 0.002, "straggler": True}}
    if fraction is not None:
        fields |= {"preempt_fraction": fraction}
    with tempfile.TemporaryDirectory() as directory:
        columns = train_ranks(RANKS, fields, iterations, Path(directory) / "run")
    batch_steps = RANKS * fields["num_envs"] * fields["rollout_steps"]
    return {
        "preempt_fraction": "" if fraction is None else fraction,
        "steps_per_second": float(np.median(columns["steps_per_second"])),
        "preempted_share": float(columns["preempted_steps"].mean() / batch_steps),
        "return_mean_100": float(columns["return_mean_100"][-1]),
        "env_steps": float(columns["env_steps"][-1]),
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=43, help="length of the run with preemption")
    options = parser.parse_args()
    rows = [measure(None, RATE_ITERATIONS), measure(FRACTION, options.iterations)]
    write_rows(TABLE, rows)
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
