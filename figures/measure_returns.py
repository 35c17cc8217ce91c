"""Train and evaluate the reference tasks: figures/data/returns.csv, and each run's curve in figures/data/curves/.

    python figures/measure_returns.py cartpole_memory cartpole_memoryless pendulum_memory halfcheetah --seeds 1 2 3

Runs one seed after the other, each with `--workers 0`: the result does not depend on it, and several copies of
this script can share a machine. A row that is in the table already is not measured again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from provenance import DATA, record

ROOT = Path(__file__).parent.parent
TASKS = {
    "cartpole": "-m shmppo.train --env CartPole-v1 --core none --total-steps 100000",
    "cartpole_memory": "examples/cartpole_memory.py",
    "cartpole_memoryless": "examples/cartpole_memory.py --core none",
    "pendulum_memory": "examples/pendulum_memory.py",
    "mountaincar_memory": "examples/mountaincar_memory.py",
    "acrobot": "-m shmppo.train --env Acrobot-v1 --core none --total-steps 200000",
    "halfcheetah": "examples/halfcheetah.py",
    "hopper": "examples/hopper.py",
    "walker2d": "examples/walker2d.py",
    "minigrid_memory": "examples/minigrid_memory.py",
    "pong": "examples/pong.py --stop-at-iteration 977",  # the first million steps of ten
}
CURVE = ("iteration", "env_steps", "wall_seconds", "return_mean_100", "length_mean_100", "kl", "clip_fraction")
CURVE_ROWS = 200


def trained(arguments: Iterable[object], seed: int, run_dir: Path) -> dict[str, object]:
    """Train with these arguments of python, evaluate; the run's part of a row."""
    command = [sys.executable, *arguments, "--seed", seed, "--workers", 0, "--quiet", "--run-dir", run_dir]
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT)
    summary = json.loads((run_dir / "summary.json").read_text())
    command = [sys.executable, "-m", "shmppo.evaluate", run_dir, "--episodes", 20, "--seed", 1, "--json"]
    path = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])  # for wrappers of the examples
    environment = os.environ | {"PYTHONPATH": path}
    output = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, env=environment)
    result = json.loads(output.stdout)
    return {
        "seed": seed,
        "env_steps": summary["env_steps"],
        "train_return_100": round(summary["return_mean_100"], 2),
        "evaluate_return": round(result["return_mean"], 2),
        "evaluate_std": round(result["return_std"], 2),
        "episodes": result["episodes"],
        "wall_seconds": round(summary["wall_seconds"], 1),
        "weights_sha256": summary["weights_sha256"],
    }


def keep_curve(task: str, seed: int, run_dir: Path) -> None:
    """At most CURVE_ROWS rows of metrics.csv, evenly spaced, the last one among them."""
    with open(run_dir / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    chosen = sorted({(len(rows) - 1) * k // max(CURVE_ROWS - 1, 1) for k in range(CURVE_ROWS)})
    path = DATA / "curves" / f"{task}-s{seed}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, CURVE, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows[i] for i in chosen)


def known(path: Path, keys: Sequence[str]) -> set[tuple[str, ...]]:
    """What `keys` say of the rows that are in a table already."""
    if not path.exists():
        return set()
    with open(path) as file:
        return {tuple(row[key] for key in keys) for row in csv.DictReader(file)}


def append(path: Path, row: dict[str, object]) -> None:
    """Add a row to a table."""
    new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)
    record(path)
    print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    path = DATA / "returns.csv"
    for task, seed in itertools.product(options.tasks, options.seeds):
        if (task, str(seed)) in known(path, ("task", "seed")):
            continue
        with tempfile.TemporaryDirectory() as directory:
            run_dir = Path(directory) / "run"
            row = {"task": task} | trained(TASKS[task].split(), seed, run_dir)
            keep_curve(task, seed, run_dir)
        append(path, row)


if __name__ == "__main__":
    main()
