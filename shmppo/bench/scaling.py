"""`python -m shmppo.bench scaling --env … --workers 1 2 4`: what more workers bring, and what holds them back."""

from __future__ import annotations

import csv
import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shmppo.bench.measured_run import JobOptions, MeasuredRun, measured_run
from shmppo.config.options import require
from shmppo.config.train_config import TrainConfig
from shmppo.plotting.curves import read_columns
from shmppo.plotting.plots import new_figure
from shmppo.plotting.scaling import PARTS, plot_scaling
from shmppo.runs.trainer import train
from shmppo.utils.files import make_parent_directory
from shmppo.utils.machine import usable_cores
from shmppo.utils.phase_timer import LEARNING, SAMPLING

Learning = Literal["central", "sharded"]
Mode = Literal["strong", "weak", "envs"]
ONLY_THE_LEARNER = ("advantage", "publish", "reduce", "optimizer", "other")
"""Phases in which the workers are parked; with central learning also "gradient"."""
COLUMNS = (
    "mode", "learning", "workers", "num_envs", "steps_per_second", "experience_steps_per_second",
    "learning_steps_per_second", "speedup", "efficiency", "collect_efficiency", "serial_fraction", "learner_share",
    "iteration_seconds", "collect_seconds", *(f"{part}_seconds" for part in PARTS), "target_seconds", "weights_sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Scaling(JobOptions):
    """Speed-up and efficiency over numbers of workers, at a fixed batch (strong) and fixed work per worker (weak)."""

    workers: tuple[int, ...] = (1, 2, 4)
    """Numbers of workers; the speed-up is over the first."""
    learning: tuple[Learning, ...] = ("central", "sharded")
    """Ways of learning to measure."""
    modes: tuple[Mode, ...] = ("strong", "weak", "envs")
    """strong: --num-envs in all. weak: --envs-per-worker for each. envs: one worker with 1, 2, 4 … environments."""
    envs_per_worker: int | None = None
    """Environments of each worker in mode weak. None: --num-envs over the largest number of workers."""
    iterations: int = 13
    """Iterations of each run, the first 3 of which are not counted."""
    repetitions: int = 1
    """Runs of each kind, interleaved; the table has their medians."""
    target_return: float | None = None
    """Also train each way (mode strong, up to --total-steps) until the mean of 100 returns reaches this. None: not."""
    out: Path = Path("scaling")
    """Files to write: OUT.csv and OUT.svg."""


def plan(options: Scaling) -> list[tuple[Mode, Learning, TrainConfig]]:
    """The runs of one repetition. Raises ConfigError, before anything is measured, for one that cannot run."""
    each = options.envs_per_worker or max(1, options.num_envs // max(options.workers))
    runs: list[tuple[Mode, Learning, TrainConfig]] = []
    for learning in options.learning:
        for w in options.workers:
            processes: dict[str, Any] = {"workers": w, "learning": learning}
            if "strong" in options.modes:
                runs.append(("strong", learning, options.config(**processes)))
            if "weak" in options.modes:
                runs.append(("weak", learning, options.with_envs(each * w, **processes)))
    if "envs" in options.modes:
        for n in (2**k for k in range(options.num_envs.bit_length())):
            runs.append(("envs", "central", options.with_envs(n, workers=1, learning="central")))
    return runs


def measure(config: TrainConfig, iterations: int) -> dict[str, float | str]:
    """One run's row: rates of the whole and of each half on its own, and the split of an iteration's seconds."""
    run = measured_run(config, iterations)
    whole, collect = config.batch_steps / run.median("steps_per_second"), run.median("collect_seconds")
    row: dict[str, float | str] = {
        "workers": config.num_workers,
        "num_envs": config.num_envs,
        "steps_per_second": config.batch_steps / whole,
        "experience_steps_per_second": config.batch_steps / collect,
        "learning_steps_per_second": config.batch_steps / (whole - collect),
        "iteration_seconds": whole,
        "collect_seconds": collect,
        "learner_share": _learner_seconds(run, central=not config.sharded) / whole,
        "weights_sha256": str(run.summary["weights_sha256"]),
    }
    return row | {f"{part}_seconds": seconds for part, seconds in _split(run).items()}


def _split(run: MeasuredRun) -> dict[str, float]:
    """Seconds of an iteration by what they go to: PARTS."""

    def seconds(*phases: str) -> float:
        return sum(run.median(f"{phase}_seconds") for phase in phases)

    handshake = run.median("sync_seconds")
    return {
        "sampling": seconds(*SAMPLING),
        "optimization": seconds(*LEARNING),
        "communication": seconds("publish", "reduce") + min(handshake, seconds("wait")),
        "waiting": max(seconds("wait") - handshake, 0.0),
        "other": seconds("other"),
    }


def _learner_seconds(run: MeasuredRun, *, central: bool) -> float:
    """Seconds of an iteration in which only the learner works."""
    phases = (*ONLY_THE_LEARNER, "gradient") if central else ONLY_THE_LEARNER
    return sum(run.median(f"{phase}_seconds") for phase in phases)


def serial_fraction(workers: np.ndarray, seconds: np.ndarray) -> float:
    """s of Amdahl's law T(W) = T(1)·(s + (1 − s)/W), least squares over the relative times; NaN for one W.

    Args:
        workers: [n], relative to the first: begins with 1. seconds: [n] of a fixed piece of work.
    """
    parallel = 1 / workers
    gain = 1 - parallel
    if not gain.any():
        return float("nan")
    return float(((seconds / seconds[0] - parallel) * gain).sum() / np.square(gain).sum())


def add_scaling(rows: list[dict[str, Any]], cores: int | None = None) -> None:
    """Add speed-up, efficiency and Amdahl's serial fraction to the rows of each (mode, learning), in place.

    Amdahl's law knows nothing of workers that share a core: it is fitted to those of at most `cores` (None: the
    machine's).

    Efficiency is the speed-up over the number of workers, both relative to the first row. In mode weak the work grows
    with the workers, so the same ratio of rates is the scaled speed-up, and no serial fraction is fitted.
    """
    for mode, learning in dict.fromkeys((row["mode"], row["learning"]) for row in rows):
        group = [row for row in rows if (row["mode"], row["learning"]) == (mode, learning)]
        first = group[0]
        if mode == "envs":
            continue
        relative = np.array([row["workers"] / first["workers"] for row in group])
        seconds = np.array([row["iteration_seconds"] for row in group])
        alone = np.array([row["workers"] for row in group]) <= (usable_cores() if cores is None else cores)
        fitted = serial_fraction(relative[alone], seconds[alone]) if alone[0] else float("nan")
        for row, w in zip(group, relative, strict=True):
            row["speedup"] = row["steps_per_second"] / first["steps_per_second"]
            row["efficiency"] = row["speedup"] / w
            row["collect_efficiency"] = row["experience_steps_per_second"] / first["experience_steps_per_second"] / w
            if mode == "strong":
                row["serial_fraction"] = fitted


def medians(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of several of the same run: medians of its numbers."""
    return {
        name: value if isinstance(value, str) else float(np.median([row[name] for row in repetitions]))
        for name, value in repetitions[0].items()
    }


def time_to_target(config: TrainConfig, target: float) -> tuple[float, dict[str, np.ndarray]]:
    """Train to the end; returns seconds to the first mean return of at least `target` (NaN: never) and the curve."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        train(dataclasses.replace(config, run_dir=str(run_dir)))
        columns = read_columns(run_dir / "metrics.csv")
    reached = np.flatnonzero(columns["return_mean_100"] >= target)
    seconds = float(columns["wall_seconds"][reached[0]]) if len(reached) else float("nan")
    return seconds, {name: columns[name] for name in ("env_steps", "wall_seconds", "return_mean_100")}


def report(options: Scaling) -> list[dict[str, Any]]:
    """Measure, print, and write the table and its figure; returns the table's rows."""
    require(bool(options.workers) and min(options.workers) >= 1, f"--workers is {options.workers}; give counts from 1")
    require(options.repetitions >= 1, f"--repetitions is {options.repetitions}; it must be at least 1")
    out = options.out.with_suffix("") if options.out.suffix in (".csv", ".svg") else options.out
    # What is missing is missed now, not after the measurement.
    new_figure(1, 1)
    make_parent_directory(out, "--out")
    runs = plan(options)
    measured: list[list[dict[str, Any]]] = [[] for _ in runs]
    for _ in range(options.repetitions):
        for kept, (mode, learning, config) in zip(measured, runs, strict=True):
            row = {"mode": mode, "learning": learning} | measure(config, options.iterations)
            kept.append(row)
            sizes = f"{mode:<7}{learning:<8} {config.num_workers:3} workers {config.num_envs:5} environments"
            print(f"{sizes} {row['steps_per_second']:10,.0f} steps/s", flush=True)
    rows = [medians(repetitions) for repetitions in measured]
    add_scaling(rows)
    curves: list[dict[str, Any]] = []
    if options.target_return is not None:
        for row in (row for row in rows if row["mode"] == "strong"):
            config = options.config(workers=int(row["workers"]), learning=row["learning"], quiet=True)
            row["target_seconds"], curve = time_to_target(config, options.target_return)
            key = {"learning": row["learning"], "workers": int(row["workers"])}
            curves += [key | dict(zip(curve, step, strict=True)) for step in zip(*curve.values(), strict=True)]
    _write(out.with_name(f"{out.name}.csv"), COLUMNS, rows)
    if curves:
        _write(out.with_name(f"{out.name}-curves.csv"), tuple(curves[0]), curves)
    plot_scaling(rows, curves, out.with_name(f"{out.name}.svg"))
    print(table(rows))
    print(f"{out}.csv, {out}.svg")
    return rows


def _write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    """What is printed: a line per run, and what Amdahl's law makes of each way of learning."""
    lines = [
        "mode    learning   W     N    steps/s  experience  learning      S     E  sampling  optim.  commun.  waiting"
    ]
    for row in rows:
        whole = sum(row[f"{part}_seconds"] for part in PARTS)
        shares = "".join(f"{row[f'{part}_seconds'] / whole:9.0%}" for part in PARTS[:4])
        gain = f"{row['speedup']:7.2f}{row['efficiency']:6.2f}" if "speedup" in row else f"{'':13}"
        rates = f"{row['steps_per_second']:11,.0f}{row['experience_steps_per_second']:12,.0f}"
        sizes = f"{row['mode']:<8}{row['learning']:<8}{row['workers']:4.0f}{row['num_envs']:6.0f}"
        lines.append(f"{sizes}{rates}{row['learning_steps_per_second']:10,.0f}{gain}{shares}")
    for row in rows:
        if row["mode"] == "strong" and row["speedup"] == 1:
            lines.append(
                f"{row['learning']}: Amdahl's serial fraction {row['serial_fraction']:.2f}; phases in which only the "
                f"learner works take {row['learner_share']:.2f} of the iteration at W = {row['workers']:.0f}"
            )
        if "target_seconds" in row:
            lines.append(f"{row['learning']}, W = {row['workers']:.0f}: target return in {row['target_seconds']:.1f} s")
    return "\n".join(lines)
