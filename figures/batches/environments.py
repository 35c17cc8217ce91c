"""Train with 16, 64, and 256 environments, with minibatches that keep their size or grow, at one learning rate.

    python -m figures.batches.environments --seeds 1 2 3

A rollout has 128 steps per environment, so an iteration with 64 environments has four times as many steps as one with
16. Its minibatches are four times as many ("more") or four times as large ("larger"). Runs that the table has are not
repeated. Appends to environments.csv.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run

TABLE = Path(__file__).with_name("environments.csv")
TASKS = {
    "HalfCheetah-v5": (4, "--hidden-size 128 --encoder-sizes 128 --seq-len 16 --epochs 4"),
    "Ant-v5": (32, "--preset Ant-v5"),
    "popgym-NoisyPositionOnlyCartPoleEasy-v0": (2, "--preset popgym"),
}
"""Number of minibatches with 16 environments, and flags. HalfCheetah is task A of the throughput."""
CASES = [(16, "same"), *itertools.product((64, 256), ("more", "larger"))]
"""Environments, and how the minibatches differ from those with 16 environments."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    for seed, (task, (count, flags)), (envs, how) in itertools.product(options.seeds, TASKS.items(), CASES):
        minibatches = count * envs // 16 if how == "more" else count
        name = f"popgym:{task}" if task.startswith("popgym") else task
        sizes = ["--num-envs", envs, "--rollout-steps", 128, "--minibatches", minibatches, "--total-steps", 1_000_000]
        key = {"task": task, "environments": str(envs), "minibatches": how}
        add_run(TABLE, key, seed, ["-m", "shmppo.train", *flags.split(), "--env", name, *sizes])


if __name__ == "__main__":
    main()
