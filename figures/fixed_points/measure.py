"""Run the two studies of the paper "Training PPO-Clip with Parallelized Data Generation" at its size.

    python -m figures.fixed_points.measure --seeds 1 2 3 4

The first study varies the minibatches of iterations of 500 environments × 100 steps, the second the shape of the
iteration, environments × steps, with minibatches of 100 steps. The KL penalty has the same sizes as one of the runs.
The other hyperparameters are those of CleanRL. One update in five is recorded, beginning with the first one.
Episodes of 1,000 steps seldom end with so many environments, so 10 episodes are evaluated every second iteration.

Appends to fixed_points.csv. Its KL columns are means over the recorded updates, and `gamma` is the factor γ_D of the
reference KL per optimizer step. The evaluations are in evaluations/, and the KL profiles of the two settings that the
paper compares in profiles/.
Runs that the table has are not repeated, and an interrupted run is resumed.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from figures.common.command_line import script_parser
from figures.common.evaluated_runs import add_run
from figures.common.tables import read_rows, write_rows
from shmppo.extensions.kl_profile.profile import mean_profile, read_profiles
from shmppo.plotting.curves import read_columns

TABLE = Path(__file__).with_name("fixed_points.csv")
TASKS = ("HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
BATCH_STEPS = 50_000
COMPARED = ("1000x50", "50x1000")
"""Minibatches, number × steps, whose KL profiles the paper shows."""
CASES = [
    *(("500x100", f"{BATCH_STEPS // size}x{size}", "clip") for size in (50, 1000, 100, 250, 500, BATCH_STEPS)),
    *((shape, "500x100", "clip") for shape in ("1000x50", "200x250", "100x500")),
    ("500x100", "500x100", "penalty"),
]
"""(environments × steps, minibatches × steps, objective)."""
CLEANRL = (
    "-m", "shmppo.train", "--core", "none", "--encoder-sizes", 64, 64, "--separate-critic", "all", "--epochs", 10,
    "--learning-rate", 3e-4, "--value-clip", "--kl-profile-every", 5, "--eval-every", 2, "--eval-episodes", 10,
)  # fmt: skip
KL_COLUMNS = ("sequential_mean", "reference_start", "gamma", "slope", "monotonic_share")
RETURN = "eval/return"
SHARES = slice(None, None, 3)
"""Points of a profile that are kept."""


def flags(case: tuple[str, str, str]) -> list[object]:
    """Return the flags of a case of CASES."""
    (envs, steps), minibatches, objective = case[0].split("x"), case[1].partition("x")[0], case[2]
    flags = ["--num-envs", envs, "--rollout-steps", steps, "--minibatches", minibatches, "--objective", objective]
    return list(flags)


def kl_columns(run_dir: Path) -> dict[str, Any]:
    """Return the KL columns of a finished run. Write its evaluations, and its profiles if it is one of COMPARED."""
    evaluations = [{name: row[name] for name in ("env_steps", RETURN)} for row in read_rows(run_dir / "eval.csv")]
    write_rows(TABLE.parent / "evaluations" / f"{run_dir.name}.csv", evaluations, note=None)
    if any(f"-500x100-{minibatches}-clip-" in run_dir.name for minibatches in COMPARED):
        rows = []
        for iteration, profile in read_profiles(run_dir).items():
            share, sequential = mean_profile([profile], "sequential")
            points = np.stack([share, sequential, mean_profile([profile], "reference")[1]], axis=1)[SHARES]
            rows += [
                {
                    "iteration": iteration,
                    "share": f"{x:.2f}",
                    "log10_sequential": f"{a:.4f}",
                    "log10_reference": f"{b:.4f}",
                }
                for x, a, b in points
            ]
        write_rows(TABLE.parent / "profiles" / f"{run_dir.name}.csv", rows, note=None)
    table = read_columns(run_dir / "kl.csv")
    return {column: f"{np.nanmean(table[column]):.5g}" for column in KL_COLUMNS}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of each run")
    options = parser.parse_args()
    for seed, task, case in itertools.product(options.seeds, options.tasks, CASES):
        key = {
            "task": task,
            "shape": case[0],
            "minibatches": case[1],
            "objective": case[2],
            "steps": str(options.steps),
        }
        arguments = [*CLEANRL, "--env", task, "--total-steps", options.steps, *flags(case)]
        add_run(TABLE, key, seed, arguments, more=kl_columns)


if __name__ == "__main__":
    main()
