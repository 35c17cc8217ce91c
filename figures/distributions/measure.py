"""Compare the distributions of Box actions.

    python -m figures.distributions.measure --seeds 1 2 3

HalfCheetah and Hopper have the preset of HalfCheetah, and Pendulum has hidden velocities. The runs are those of
`figures.common.evaluated_runs`; runs that the table has are not repeated. Appends to distributions.csv.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run

TABLE = Path(__file__).with_name("distributions.csv")
TASKS = {
    "Pendulum-v1-memory": ("--preset", "Pendulum-v1-memory"),
    "HalfCheetah-v5": ("--preset", "HalfCheetah-v5", "--total-steps", 500_000),
    "Hopper-v5": ("--preset", "HalfCheetah-v5", "--env", "Hopper-v5", "--total-steps", 500_000),
}
CASES: dict[str, tuple[object, ...]] = {
    "default": (),
    "squash": ("--squash-actions",),
    "state": ("--std", "state"),
    "beta": ("--distribution", "beta"),
}
"""Case -> its flags."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    for seed, task, (case, flags) in itertools.product(options.seeds, options.tasks, CASES.items()):
        add_run(TABLE, {"task": task, "case": case}, seed, ["-m", "shmppo.train", *TASKS[task], *flags])


if __name__ == "__main__":
    main()
