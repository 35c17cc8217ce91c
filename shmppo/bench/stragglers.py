"""`python -m shmppo.bench stragglers [flags of train]`: who lock-step waits for, by worker and by environment."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro

from shmppo.bench.measured_run import WARM_UP, measured_run
from shmppo.config.train_config import TrainConfig


@dataclass(frozen=True)
class Stragglers:
    """Step times of every environment, what each worker sums up to, and the share of sampling spent waiting."""

    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The configuration to time."""
    iterations: int = 23
    """Iterations, the first 3 of which do not count towards the workers' waiting."""
    show: int = 8
    """Environments to list, the slowest first."""
    json: bool = False
    """Print one JSON object."""


def stragglers(config: TrainConfig, iterations: int) -> dict[str, Any]:
    """Train for some iterations with every step timed.

    Returns:
        workers and environments, lists of rows from the slowest on (seconds); straggler_wait, the share of sampling for
        which the mean worker waits for the slowest, median over iterations; unequal, the same if each worker took its
        mean time in every iteration: what is above it is chance, which no other dealing of environments removes.
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
        "unequal": float(1 - sums.mean() / sums.max()),
        "collect_seconds": run.median("collect_seconds"),
        "workers": sorted(workers, key=lambda row: -row["stepping_seconds"]),
        "environments": sorted(environments, key=lambda row: -row["mean_seconds"]),
    }


def report(options: Stragglers) -> dict[str, Any]:
    """Measure and print."""
    result = stragglers(options.train, options.iterations)
    if options.json:
        print(json.dumps(result))
        return result
    print(f"sampling takes {result['collect_seconds'] * 1e3:.2f} ms an iteration;")
    print(f"the mean worker waits for the slowest one for {result['straggler_wait']:.1%} of that time;")
    print(f"it would be {result['unequal']:.1%} if each worker always took its mean time")
    print("worker   environments   stepping, ms an iteration   was the slowest")
    for row in result["workers"]:
        stepping = row["stepping_seconds"] * 1e3
        print(f"{row['worker']:6}{row['environments']:15}{stepping:28.2f}{row['slowest_share']:18.0%}")
    print("environment   worker   ms a step: mean      50 %      90 %      99 %   largest")
    columns = ("mean_seconds", "q50_seconds", "q90_seconds", "q99_seconds", "largest_seconds")
    for row in result["environments"][: options.show]:
        numbers = "".join(f"{row[name] * 1e3:10.3g}" for name in columns)
        print(f"{row['environment']:11.0f}{row['worker']:9.0f}{'':10}{numbers}")
    return result
