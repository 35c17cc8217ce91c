"""Measure the speed over the number of workers.

    python -m figures.scaling.measure workers
    python -m figures.scaling.measure jobs
    python -m figures.scaling.measure load

workers: task A with 1, 2, and 4 workers, and the time to a return of 500, the former by `python -m
shmppo.bench scaling`. Writes scaling.csv and scaling-curves.csv.

jobs: what a second core brings, for jobs of several sizes. For each job, a few slices first find the fastest number of
gradient shards, for one process and for two workers. Then the run with two workers is compared with the fastest single
process, and with two separate single-process runs. These share nothing, so their combined rate is the limit for two
cores. Writes jobs.csv.

load: task A with 0, 1, and 2 workers beside busy processes. Writes load.csv.

Runs that are compared are interleaved. Measure on a machine without other load.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from figures.common.command_line import script_parser
from figures.common.interleaved import add_slice_flags, interleaved_rates, spread
from figures.common.jobs import ENDLESS, TASK_A, TASK_B, flags
from figures.common.paths import FIGURES, ROOT
from figures.common.tables import read_rows, write_rows

FOLDER = FIGURES / "scaling"
REPETITIONS = 3
WORKERS = TASK_A | {"workers": (1, 2, 4), "repetitions": REPETITIONS, "iterations": 23}
CURVE_STEPS, TARGET_RETURN = 300_000, 500.0
JOBS = {
    "A": TASK_A,
    "A with 64 environments": TASK_A | {"num_envs": 64},
    "A with 64 environments and LSTM 256": TASK_A | {"num_envs": 64, "hidden_size": 256},
    "A with Humanoid-v5": TASK_A | {"env": "Humanoid-v5"},
    "B": TASK_B,
}
SHARDS = (1, 2, 4, 8)
TRIAL_SLICES = 3  # for each number of shards


def measure_workers(options: argparse.Namespace) -> None:
    """Run `bench scaling`, copy its table, and train each of its runs with the same total batch for CURVE_STEPS."""
    curves: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "scaling.csv"
        command = [sys.executable, "-m", "shmppo.bench", "scaling", *flags(WORKERS), "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True)
        rows = [row | {"target_seconds": ""} for row in read_rows(out)]
        for row in (row for row in rows if row["mode"] == "strong"):
            key = {"learning": row["learning"], "workers": row["workers"]}
            curve = learning_curve(key, Path(directory) / f"{row['learning']}-{row['workers']}")
            curves += [key | point for point in curve]
            reached = [p["wall_seconds"] for p in curve if float(p["return_mean_100"]) >= TARGET_RETURN]
            row["target_seconds"] = next(iter(reached), "nan")
    write_rows(FOLDER / "scaling-curves.csv", curves, note=None)
    write_rows(FOLDER / "scaling.csv", rows, f"Medians of {REPETITIONS} interleaved runs.")


def learning_curve(fields: dict[str, str], run_dir: Path) -> list[dict[str, str]]:
    """Train task A with these fields; returns three columns of its metrics."""
    command = [sys.executable, "-m", "shmppo.train", *flags(TASK_A | {"total_steps": CURVE_STEPS} | fields)]
    subprocess.run([*command, "--quiet", "--run-dir", str(run_dir)], cwd=ROOT, check=True)
    columns = ("env_steps", "wall_seconds", "return_mean_100")
    return [{name: row[name] for name in columns} for row in read_rows(run_dir / "metrics.csv")]


def fastest_shards(command: Sequence[str], minimum: int, seconds: float) -> str:
    """Return the number of shards with the highest rate, out of those from `minimum` on."""
    commands = {str(shards): [[*command, "--grad-shards", str(shards)]] for shards in SHARDS if shards >= minimum}
    rates = interleaved_rates(commands, TRIAL_SLICES, seconds)
    return max(commands, key=lambda shards: median(rate[shards] for rate in rates))


def measure_jobs(options: argparse.Namespace) -> None:
    """Write a row per job: medians over the slices, and the lowest and highest efficiency."""
    rows: list[dict[str, Any]] = []
    for job, fields in JOBS.items():
        command = flags(fields | ENDLESS)
        one, two = [*command, "--workers", "0"], [*command, "--workers", "2"]
        one_shards, two_shards = fastest_shards(one, 1, options.seconds), fastest_shards(two, 2, options.seconds)
        one += ["--grad-shards", one_shards]
        two += ["--grad-shards", two_shards]
        rates = interleaved_rates({"one": [one], "separate": [one, one], "two": [two]}, options.slices, options.seconds)
        efficiency = spread(rates, "two", "separate")
        row = {"job": job, "shards_of_one": one_shards, "shards_of_two": two_shards}
        names = {"one_process": "one", "separate_runs": "separate", "two_workers": "two"}
        row |= {column: round(median(rate[name] for rate in rates)) for column, name in names.items()}
        row |= {"speedup": spread(rates, "two", "one")["ratio"], "efficiency": efficiency.pop("ratio"), **efficiency}
        rows.append(row)
        print(row, flush=True)
    note = f"Steps per second; medians of {options.slices} slices of {options.seconds:g} s."
    write_rows(FOLDER / "jobs.csv", rows, note)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that need a core each and are pinned to none."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_load(options: argparse.Namespace) -> None:
    """Write a row per number of busy processes: the median rates, and the ratio of two workers to none."""
    commands = {str(w): [flags(TASK_A | ENDLESS | {"workers": w, "grad_shards": 2})] for w in (0, 1, 2)}
    rows: list[dict[str, Any]] = []
    for busy in (0, 1, 2):
        with busy_processes(busy):
            rates = interleaved_rates(commands, options.slices, options.seconds)
        medians = {f"workers_{w}": round(median(rate[w] for rate in rates)) for w in commands}
        rows.append({"busy": busy, **medians, **spread(rates, "2", "0"), "rounds": len(rates)})
        print(rows[-1], flush=True)
    write_rows(FOLDER / "load.csv", rows, "Steps per second; medians over the rounds.")


PARTS = {"workers": measure_workers, "jobs": measure_jobs, "load": measure_load}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    add_slice_flags(parser, slices=9, seconds=6.0)
    options = parser.parse_args()
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
