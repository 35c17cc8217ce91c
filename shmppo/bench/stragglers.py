"""Benchmark `python -m shmppo.bench stragglers [flags of train]`: which workers and environments are slow.

The learner needs the samples of all workers before it can update. Every worker therefore waits for the slowest one.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from shmppo.bench.measured_run import WARM_UP, measured_run
from shmppo.bench.options import Stragglers
from shmppo.config.train_config import TrainConfig


def stragglers(config: TrainConfig, iterations: int) -> dict[str, Any]:
    """Train for a number of iterations and time every environment step.

    Returns:
        straggler_wait: share of the sampling time for which a worker waits for the slowest one. Mean over the workers,
        median over the iterations.
        imbalance: the same share if every worker took its mean time in every iteration. The rest of straggler_wait is
        random, so assigning environments to other workers does not remove it.
        collect_seconds: seconds of sampling per iteration, median.
        workers, environments: lists of rows, slowest first; times in seconds.
    """
    run = measured_run(dataclasses.replace(config, step_times=True), iterations)
    times = run.step_times
    worker, steps = times["worker"].astype(int), times["steps"]
    sums = np.bincount(worker, times["mean_seconds"] * steps) / iterations  # [W], per rollout
    slowest = np.bincount(run.columns["slowest_worker"][WARM_UP:].astype(int), minlength=len(sums))
    workers = [
        {"worker": w, "environments": int((worker == w).sum()), "stepping_seconds": float(sums[w])}
        | {"slowest_share": float(slowest[w] / slowest.sum())}
        for w in range(len(sums))
    ]
    environments = [{name: float(column[n]) for name, column in times.items()} for n in range(len(worker))]
    return {
        "straggler_wait": run.median("straggler_wait"),
        "imbalance": float(1 - sums.mean() / sums.max()),
        "collect_seconds": run.median("collect_seconds"),
        "workers": sorted(workers, key=lambda row: -row["stepping_seconds"]),
        "environments": sorted(environments, key=lambda row: -row["mean_seconds"]),
    }


def report(options: Stragglers) -> dict[str, Any]:
    """Measure and print; returns the result of `stragglers`."""
    result = stragglers(options.train, options.iterations)
    print(json.dumps(result) if options.json else tables(result, options.show))
    return result


def tables(result: dict[str, Any], show: int) -> str:
    """Format the result of `stragglers` for printing, with the `show` slowest environments."""
    lines = [
        f"Sampling takes {result['collect_seconds'] * 1e3:.2f} ms per iteration.",
        f"On average, a worker waits for the slowest worker for {result['straggler_wait']:.1%} of that time.",
        f"It would wait for {result['imbalance']:.1%} if every worker always took its mean time.",
        "worker   environments   stepping, ms per iteration   share of iterations as slowest",
    ]
    for row in result["workers"]:
        stepping = row["stepping_seconds"] * 1e3
        lines.append(f"{row['worker']:6}{row['environments']:15}{stepping:29.2f}{row['slowest_share']:33.0%}")
    lines.append("environment   worker   ms per step: mean      50 %      90 %      99 %   largest")
    columns = ("mean_seconds", "q50_seconds", "q90_seconds", "q99_seconds", "largest_seconds")
    for row in result["environments"][:show]:
        numbers = "".join(f"{row[name] * 1e3:10.3g}" for name in columns)
        lines.append(f"{row['environment']:11.0f}{row['worker']:9.0f}{'':10}{numbers}")
    return "\n".join(lines)
