"""Train Walker2d with batches that grow with the number of environments, and with several learning rates.

    python -m figures.batches.measure --seeds 1 2 3

A run with k environments has k times the batch and minibatches of k times the size. Its learning rate is that of
the preset times k to the power 0, 1/2, or 1. Runs that the table has are not repeated. Appends to batches.csv.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run
from shmppo import preset

TABLE = Path(__file__).with_name("batches.csv")
TASK, PRESET = "Walker2d-v5", "HalfCheetah-v5"
CASES = [(1, 0.0), *itertools.product((2, 4, 8), (0.0, 0.5, 1.0))]
"""(factor of the batch, power of the factor by which the learning rate is multiplied)."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    for seed, (factor, power) in itertools.product(options.seeds, CASES):
        rate = preset(PRESET).learning_rate * factor**power
        flags = ["--preset", PRESET, "--env", TASK, "--num-envs", factor, "--learning-rate", f"{rate:.2g}"]
        key = {"task": TASK, "environments": str(factor), "learning_rate": f"{rate:.2g}"}
        add_run(TABLE, key, seed, ["-m", "shmppo.train", *flags])


if __name__ == "__main__":
    main()
