"""Clip against penalty against per-dimension: figures/data/variants.csv, and each run's curve in figures/data/curves/.

    python figures/measure_variants.py --seeds 1 2 3

The recipe of examples/halfcheetah.py, the same budget for all. Runs one after the other, each with `--workers 0`: the
result does not depend on it, and several copies of this script, each with its own seeds, can share a machine. A row
that is in the table already is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from measure_returns import append, keep_curve, known, trained
from provenance import DATA

TASKS = ("HalfCheetah-v5", "Walker2d-v5")
VARIANTS = {
    "clip": (),
    "penalty": ("--objective", "penalty"),
    "per-dimension": ("--ratio", "per-dimension"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    path = DATA / "variants.csv"
    for task, seed, variant in itertools.product(options.tasks, options.seeds, options.variants):
        if (task, variant, str(seed)) in known(path, ("task", "variant", "seed")):
            continue
        with tempfile.TemporaryDirectory() as directory:
            run_dir = Path(directory) / "run"
            recipe = ["examples/halfcheetah.py", "--env", task, "--total-steps", options.steps, *VARIANTS[variant]]
            row = {"task": task, "variant": variant} | trained(recipe, seed, run_dir)
            keep_curve(f"{task}-{variant}", seed, run_dir)
        append(path, row)


if __name__ == "__main__":
    main()
