"""Train runs, and evaluate their final policies. Interrupted runs are resumed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures.common.paths import ROOT
from figures.common.tables import append_rows, has_row, read_rows, write_rows
from shmppo.config.checks import flags_with_values
from shmppo.config.train_config import load_config
from shmppo.config.trust import trust_of
from shmppo.utils.machine import git_revision

RUNS = ROOT / "runs"
CURVE_COLUMNS = (
    "iteration", "env_steps", "wall_seconds", "return_mean_100", "length_mean_100", "approx_kl", "clip_fraction",
)  # fmt: skip
CURVE_ROWS = 200


def add_run(
    table: Path,
    key: Mapping[str, str],
    seed: int,
    arguments: Sequence[object],
    *,
    episodes: int = 20,
    columns: Sequence[str] = CURVE_COLUMNS,
    more: Callable[[Path], Mapping[str, Any]] = lambda run_dir: {},
) -> None:
    """Train and evaluate, unless the table has the row already.

    Appends a row to the table. Writes the learning curve into curves/ beside it. The directory of the run is in
    runs/, in a folder with the name of the table. An interrupted run is resumed. The directory of a finished run is
    removed.

    Args:
        table: the CSV file.
        key: columns that identify the run together with the seed. Their values, joined by "-", name the curve.
        seed: of the training run.
        arguments: of the Python interpreter: a script or module that trains, and its flags.
        episodes: of the evaluation.
        columns: of metrics.csv, for the learning curve.
        more: returns further columns from the directory of the finished run.
    """
    if has_row(table, {**key, "seed": seed}):
        return
    name = f"{'-'.join(key.values())}-s{seed}"
    run_dir = RUNS / table.stem / name
    row = dict(key) | train_and_evaluate(arguments, seed, run_dir, episodes) | dict(more(run_dir))
    save_curve(run_dir, table.parent / "curves" / f"{name}.csv", columns)
    append_rows(table, [row])
    shutil.rmtree(run_dir)
    print(row, flush=True)


def train_and_evaluate(arguments: Sequence[object], seed: int, run_dir: Path, episodes: int) -> dict[str, Any]:
    """Train with --workers 0 unless the run is finished, evaluate over some episodes, and return the results."""
    summary = train(arguments, seed, run_dir)
    result = evaluate_run(run_dir, episodes)
    return {
        "seed": seed,
        "env_steps": summary["env_steps"],
        "train_return_100": round(summary["return_mean_100"], 2),
        "evaluate_return": round(result["return_mean"], 2),
        "evaluate_std": round(result["return_std"], 2),
        "episodes": result["episodes"],
        "wall_seconds": round(summary["wall_seconds"], 1),
        "weights_sha256": summary["weights_sha256"],
        "commit": commits_of(run_dir),
    }


def evaluate_run(run_dir: Path, episodes: int, *flags: object) -> dict[str, Any]:
    """Evaluate a run's final policy with its --eval-env-kwargs; return the results of `shmppo evaluate --json`."""
    command = [sys.executable, "-m", "shmppo.evaluate", run_dir, "--episodes", episodes, "--seed", 1, "--json"]
    kwargs = load_config(run_dir).eval_env_kwargs
    command += [*trust_of(run_dir).split(), *flags, *(flags_with_values({"env_kwargs": kwargs}) if kwargs else [])]
    # Some examples define wrappers that the run names by the module of the example.
    path = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    output = subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    result: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])  # an environment may print before
    return result


def is_finished(run_dir: Path) -> bool:
    """Whether the run in a directory has reached its last step."""
    summary = run_dir / "summary.json"
    if not summary.exists():
        return False
    steps: int = json.loads(summary.read_text())["env_steps"]
    return steps >= load_config(run_dir).total_steps


def train(arguments: Sequence[object], seed: int, run_dir: Path) -> dict[str, Any]:
    """Train with --workers 0 unless the run is finished, or resume from its last checkpoint, and return its summary.

    Raises:
        SystemExit: if a signal has stopped the training.
    """
    if not is_finished(run_dir):
        words = list(map(str, arguments))
        if (run_dir / "checkpoint.pt").exists():
            program = itertools.takewhile(lambda word: not word.startswith("--"), words)
            command = [*program, "--resume", str(run_dir), *trust_of(run_dir).split()]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # it was killed before its first checkpoint
            command = [*words, "--seed", str(seed), "--run-dir", str(run_dir)]
        subprocess.run([sys.executable, *command, "--workers", "0", "--quiet"], check=True, cwd=ROOT)
    if not is_finished(run_dir):
        raise SystemExit(f"the training in {run_dir} was stopped; run the same command again to resume it")
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def commits_of(run_dir: Path) -> str:
    """Return the abbreviated commits of the start of a run and of the present code; one if they are equal."""
    started = json.loads((run_dir / "config.json").read_text())["git_revision"]
    return " ".join(dict.fromkeys((commit or "installed")[:7] for commit in (started, git_revision())))


def save_curve(run_dir: Path, file: Path, columns: Sequence[str] = CURVE_COLUMNS) -> None:
    """Save at most CURVE_ROWS evenly spaced rows of metrics.csv, including the last one."""
    rows = read_rows(run_dir / "metrics.csv")
    chosen = sorted({(len(rows) - 1) * k // (CURVE_ROWS - 1) for k in range(CURVE_ROWS)})
    write_rows(file, [{column: rows[i][column] for column in columns} for i in chosen], note=None)
