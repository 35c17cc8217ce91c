"""Benchmark `python -m shmppo.bench scaling --env … --workers 1 2 4`: speed-up and efficiency over worker counts.

Strong scaling keeps the batch size fixed. Weak scaling keeps the work per worker fixed.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from typing import Any

import numpy as np

from shmppo.bench.measured_run import PARTS, measured_run
from shmppo.bench.options import Learning, Mode, Scaling
from shmppo.bench.throughput import in_processes
from shmppo.config.checks import require
from shmppo.config.option import check_bounds
from shmppo.config.train_config import TrainConfig
from shmppo.utils.files import config_error_if_unwritable, make_parent_directory, user_path
from shmppo.utils.machine import usable_cores

LEARNER_ONLY_PHASES = ("advantage", "publish", "reduce", "optimizer", "other")
"""Phases in which only the learner works. In large networks, workers share "reduce" and "optimizer". With central
learning, "gradient" is another one."""
COLUMNS = (
    "mode", "learning", "workers", "num_envs", "steps_per_second", "experience_steps_per_second",
    "learning_steps_per_second", "speedup", "efficiency", "limit_steps_per_second", "of_limit", "collect_efficiency",
    "serial_fraction", "learner_share",
    "iteration_seconds", "collect_seconds", *(f"{part}_seconds" for part in PARTS), "weights_sha256",
)  # fmt: skip
"""Columns of the file."""
LEGEND = (
    "W: workers. N: environments. S: speed-up. E: efficiency. L: share of the rate of W separate processes without\n"
    "workers, the limit of W cores. Rates are steps per second: of the whole iteration, of sampling alone, and of\n"
    "learning alone. Percentages are shares of the time."
)


def plan(options: Scaling) -> list[tuple[Mode, Learning, TrainConfig]]:
    """List the runs of one repetition. Raises ConfigError if any of them cannot run."""
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


def measure(config: TrainConfig, iterations: int) -> dict[str, Any]:
    """Time one run; returns its row of the table.

    Returns:
        Steps per second of the whole iteration, of sampling alone, and of learning alone; seconds of an iteration,
        in total and by part; the hash of the weights.
    """
    run = measured_run(config, iterations)
    alone = LEARNER_ONLY_PHASES if config.workers_compute_gradients else (*LEARNER_ONLY_PHASES, "gradient")
    iteration, collect = config.batch_steps / run.median("steps_per_second"), run.median("collect_seconds")
    return {
        "workers": config.num_workers,
        "num_envs": config.num_envs,
        "steps_per_second": config.batch_steps / iteration,
        "experience_steps_per_second": config.batch_steps / collect,
        "learning_steps_per_second": config.batch_steps / (iteration - collect),
        "iteration_seconds": iteration,
        "collect_seconds": collect,
        "learner_share": sum(run.median(f"{phase}_seconds") for phase in alone) / iteration,
        "weights_sha256": run.summary["weights_sha256"],
        **{f"{part}_seconds": seconds for part, seconds in run.parts().items()},
    }


def limit(config: TrainConfig, iterations: int) -> float:
    """Measure the steps per second of W runs without workers at the same time, in total. They share nothing."""
    alone = dataclasses.replace(config, workers=0, learning="auto")
    return in_processes(functools.partial(_rate, iterations), alone, config.num_workers)


def _rate(iterations: int, config: TrainConfig) -> float:
    return measured_run(config, iterations).median("steps_per_second")


def serial_fraction(workers: np.ndarray, seconds: np.ndarray) -> float:
    """Fit the serial fraction s of Amdahl's law T(W) = T(1)·(s + (1 − s)/W) by least squares over T(W)/T(1).

    Args:
        workers: [n] numbers of workers relative to the first, so the first value is 1.
        seconds: [n] times of the same piece of work.

    Returns:
        s, or NaN if there is only one number of workers.
    """
    parallel = 1 / workers
    gain = 1 - parallel
    if not gain.any():
        return float("nan")
    return float(((seconds / seconds[0] - parallel) * gain).sum() / np.square(gain).sum())


def add_scaling(rows: list[dict[str, Any]], cores: int) -> None:
    """Add speed-up, efficiency, and Amdahl's serial fraction to the rows of each (mode, learning), in place.

    Efficiency is the speed-up divided by the number of workers. Both are relative to the first row of the group. In
    mode strong, a row also gets its share of the limit (see `limit`). In mode weak the work grows with the workers, so
    the ratio of the rates is the scaled speed-up. No serial fraction is fitted then.

    Args:
        rows: results of `measure`, with "mode" and "learning".
        cores: fit the serial fraction only to rows with at most this many workers, because Amdahl's law does not
            describe workers that share a core.
    """
    for mode, learning in dict.fromkeys((row["mode"], row["learning"]) for row in rows if row["mode"] != "envs"):
        group = [row for row in rows if (row["mode"], row["learning"]) == (mode, learning)]
        first = group[0]
        workers = np.array([row["workers"] for row in group])
        relative, fits = workers / first["workers"], workers <= cores
        seconds = np.array([row["iteration_seconds"] for row in group])
        fitted = serial_fraction(relative[fits], seconds[fits]) if fits[0] else float("nan")
        for row, w in zip(group, relative, strict=True):
            row["speedup"] = row["steps_per_second"] / first["steps_per_second"]
            row["efficiency"] = row["speedup"] / w
            row["collect_efficiency"] = row["experience_steps_per_second"] / first["experience_steps_per_second"] / w
            if mode == "strong":
                row["serial_fraction"] = fitted
                row["of_limit"] = row["steps_per_second"] / row["limit_steps_per_second"]


def medians(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine repetitions of one run into one row: the median of each number."""
    return {
        name: value if isinstance(value, str) else float(np.median([row[name] for row in repetitions]))
        for name, value in repetitions[0].items()
    }


def report(options: Scaling) -> None:
    """Measure, print the table, and write the file.

    Raises:
        ConfigError: if a run is impossible, or --out cannot be written.
    """
    require(bool(options.workers) and min(options.workers) >= 1, f"--workers is {options.workers}; give counts from 1")
    check_bounds(options)
    out = user_path(options.out, "--out")
    make_parent_directory(out, "--out")  # fail before the measurement, not after it
    rows = _measure_all(options)
    add_scaling(rows, usable_cores())
    print(table(rows))
    with config_error_if_unwritable(out), open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    print(options.out)


def _measure_all(options: Scaling) -> list[dict[str, Any]]:
    """Measure all runs of `plan` in interleaved repetitions; returns one row of medians per run."""
    runs = plan(options)
    measured: list[list[dict[str, Any]]] = [[] for _ in runs]
    for _ in range(options.repetitions):
        limits: dict[int, float] = {}  # by W; they do not depend on --learning
        for repetitions, (mode, learning, config) in zip(measured, runs, strict=True):
            row = {"mode": mode, "learning": learning} | measure(config, options.iterations)
            if mode == "strong":
                w = config.num_workers
                row["limit_steps_per_second"] = limits[w] = limits.get(w) or limit(config, options.iterations)
            repetitions.append(row)
            sizes = f"{mode:<7}{learning:<8} {config.num_workers:3} workers {config.num_envs:5} environments"
            print(f"{sizes} {row['steps_per_second']:10,.0f} steps/s", flush=True)
    return [medians(repetitions) for repetitions in measured]


def table(rows: list[dict[str, Any]]) -> str:
    """Format the printed table: one line per run, then the serial fractions."""
    lines = [
        LEGEND,
        f"{'mode':<8}{'learning':<8}{'W':>4}{'N':>6}{'steps/s':>11}{'experience':>12}{'learning':>10}{'S':>7}{'E':>6}"
        f"{'L':>6}{'sampling':>10}{'optim.':>9}{'commun.':>9}{'waiting':>9}",
    ]
    for row in rows:
        whole = sum(row[f"{part}_seconds"] for part in PARTS)
        sampling, *others = (row[f"{part}_seconds"] / whole for part in PARTS[:4])
        shares = f"{sampling:10.0%}" + "".join(f"{share:9.0%}" for share in others)
        gain = f"{row['speedup']:7.2f}{row['efficiency']:6.2f}" if "speedup" in row else f"{'':13}"
        gain += f"{row['of_limit']:6.2f}" if "of_limit" in row else f"{'':6}"
        rates = f"{row['steps_per_second']:11,.0f}{row['experience_steps_per_second']:12,.0f}"
        sizes = f"{row['mode']:<8}{row['learning']:<8}{row['workers']:4.0f}{row['num_envs']:6.0f}"
        lines.append(f"{sizes}{rates}{row['learning_steps_per_second']:10,.0f}{gain}{shares}")
    for row in rows:
        if row["mode"] == "strong" and row["speedup"] == 1:
            lines.append(
                f"{row['learning']}: Amdahl's serial fraction is {row['serial_fraction']:.2f}. "
                f"At W = {row['workers']:.0f}, the learner works alone for at most {row['learner_share']:.0%} of the "
                "iteration."
            )
    return "\n".join(lines)
