"""Clip against penalty against per-dimension: figures/data/variants.csv, and each run's curve in figures/data/curves/.

    python figures/measure_variants.py --seeds 1 2 3

The recipe of examples/halfcheetah.py, the same budget for all. Runs one after the other, each with `--workers 0`: the
result does not depend on it, and several copies of this script, each with its own seeds, can share a machine. A row
that is in the table already is not measured again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from measure_returns import EXAMPLES, keep_curve
from provenance import DATA, record

TASKS = ("HalfCheetah-v5", "Walker2d-v5")
VARIANTS = {
    "clip": (),
    "penalty": ("--objective", "penalty"),
    "per-dimension": ("--ratio", "per-dimension"),
}
COLUMNS = (
    "task", "variant", "seed", "env_steps", "train_return_100", "evaluate_return", "evaluate_std", "episodes",
    "wall_seconds", "weights_sha256",
)  # fmt: skip


def measure(task: str, variant: str, seed: int, steps: int, run_dir: Path) -> dict[str, object]:
    """One run and its evaluation as a row of the table."""
    flags = ["--env", task, "--seed", seed, "--total-steps", steps, "--workers", 0, "--quiet", "--run-dir", run_dir]
    command = [sys.executable, EXAMPLES / "halfcheetah.py", *flags, *VARIANTS[variant]]
    subprocess.run(list(map(str, command)), check=True)
    summary = json.loads((run_dir / "summary.json").read_text())
    command = [sys.executable, "-m", "shmppo.evaluate", run_dir, "--episodes", 20, "--seed", 1, "--json"]
    result = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)
    return {
        "task": task,
        "variant": variant,
        "seed": seed,
        "env_steps": summary["env_steps"],
        "train_return_100": round(summary["return_mean_100"], 2),
        "evaluate_return": round(result["return_mean"], 2),
        "evaluate_std": round(result["return_std"], 2),
        "episodes": result["episodes"],
        "wall_seconds": round(summary["wall_seconds"], 1),
        "weights_sha256": summary["weights_sha256"],
    }


def known(path: Path) -> set[tuple[str, str, str]]:
    """The rows that are in the table already."""
    if not path.exists():
        return set()
    with open(path) as file:
        return {(row["task"], row["variant"], row["seed"]) for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    path = DATA / "variants.csv"
    DATA.mkdir(exist_ok=True)
    for task, seed, variant in itertools.product(options.tasks, options.seeds, options.variants):
        if (task, variant, str(seed)) in known(path):
            continue
        with tempfile.TemporaryDirectory() as directory:
            run_dir = Path(directory) / "run"
            row = measure(task, variant, seed, options.steps, run_dir)
            keep_curve(f"{task}-{variant}", seed, run_dir)
        new = not path.exists()
        with open(path, "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        record(path)
        print(row, flush=True)


if __name__ == "__main__":
    main()
