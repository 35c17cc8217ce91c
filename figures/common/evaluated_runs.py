"""Training runs of which the final policy is evaluated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from figures.common.paths import ROOT
from figures.common.tables import append_rows, has_row, read_rows, write_rows

CURVE_COLUMNS = (
    "iteration", "env_steps", "wall_seconds", "return_mean_100", "length_mean_100", "approx_kl", "clip_fraction",
)  # fmt: skip
CURVE_ROWS = 200


def add_run(table: Path, key: Mapping[str, str], seed: int, arguments: Iterable[object]) -> None:
    """Train and evaluate, unless the table has the row already.

    Appends a row to the table. Writes the learning curve into curves/ beside it.

    Args:
        table: the CSV file.
        key: columns that identify the run together with the seed. Their values, joined by "-", name the curve.
        seed: of the training run.
        arguments: of the Python interpreter: a script or module that trains, and its flags.
    """
    if has_row(table, {**key, "seed": seed}):
        return
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        row = dict(key) | train_and_evaluate(arguments, seed, run_dir)
        save_curve(run_dir, table.parent / "curves" / f"{'-'.join(key.values())}-s{seed}.csv")
    append_rows(table, [row])
    print(row, flush=True)


def train_and_evaluate(arguments: Iterable[object], seed: int, run_dir: Path) -> dict[str, Any]:
    """Train with --workers 0, evaluate over 20 episodes, and return the results."""
    command = [sys.executable, *arguments, "--seed", seed, "--workers", 0, "--quiet", "--run-dir", run_dir]
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT)
    summary = json.loads((run_dir / "summary.json").read_text())
    command = [sys.executable, "-m", "shmppo.evaluate", run_dir, "--episodes", 20, "--seed", 1, "--json"]
    # Some examples define wrappers that the run names by the module of the example.
    path = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    output = subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
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


def save_curve(run_dir: Path, file: Path) -> None:
    """Save at most CURVE_ROWS evenly spaced rows of metrics.csv, including the last one."""
    rows = read_rows(run_dir / "metrics.csv")
    chosen = sorted({(len(rows) - 1) * k // (CURVE_ROWS - 1) for k in range(CURVE_ROWS)})
    write_rows(file, [{column: rows[i][column] for column in CURVE_COLUMNS} for i in chosen], note=None)
