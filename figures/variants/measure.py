"""Compare the clipped objective, the KL penalty, and a clipped ratio per action dimension.

    python -m figures.variants.measure --seeds 1 2 3

The runs use the recipe of examples/halfcheetah.py with two changed flags, and the same number of steps. They run one
after the other with `--workers 0`, because the number of workers does not change the result. Several copies of this
script, each with its own seeds, can share a machine. Runs that are in the table already are not repeated. Appends to
variants.csv, and writes the learning curves into curves/.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run

TABLE = Path(__file__).with_name("variants.csv")
TASKS = ("HalfCheetah-v5", "Walker2d-v5")
VARIANTS = {
    "clip": (),
    "penalty": ("--objective", "penalty"),
    "per-dimension": ("--ratio", "per-dimension"),
}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of each run")
    options = parser.parse_args()
    for task, seed, variant in itertools.product(options.tasks, options.seeds, options.variants):
        flags = ["--log-std-init", 0, "--value-clip", "--env", task, *VARIANTS[variant], "--total-steps", options.steps]
        add_run(TABLE, {"task": task, "variant": variant}, seed, ["examples/halfcheetah.py", *flags])


if __name__ == "__main__":
    main()
