"""What runs have reached: their last values, means over the seeds of a configuration, and which one is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmppo.loggers.text import number
from shmppo.plotting.curves import Groups, Run, bootstrap_interval, interquartile_mean, mean_name


def with_seeds(name: str, seeds: int) -> str:
    """Return the name of a group in a legend."""
    return f"{name} ({seeds} seeds)" if seeds > 1 else name


def mean_over_seeds(groups: Groups) -> str:
    """Say which mean the groups of several seeds have. Empty if there is no such group."""
    names = {mean_name(len(runs)) for runs in groups.values() if len(runs) > 1}
    return " or, below 4, ".join(sorted(names))


def outcomes(groups: Groups) -> list[str]:
    """Return the columns that say how good the policies are: returns and metrics of `info`, also of evaluations."""
    known = dict.fromkeys(name for runs in groups.values() for run in runs for name in (*run.columns, *run.evaluations))
    added = [name for name in known if name == "eval/return" or name.startswith(("info/", "eval/info/"))]
    return ["return_mean_100", *added]


def last_values(runs: Sequence[Run], column: str) -> np.ndarray:
    """Return the last value in a column of each run that has one, [runs]. NaN, [1], if none has."""
    last = [(run.columns | run.evaluations).get(column, [math.nan])[-1] for run in runs]
    return np.array([value for value in last if not math.isnan(value)] or [math.nan])


def mean_and_interval(values: np.ndarray) -> str:
    """Return the `interquartile_mean` of values, [runs], and its 95 % interval if there are several."""
    numbers = interquartile_mean(values[:, None]), *bootstrap_interval(values[:, None])
    mean, low, high = (f"{value:,.0f}" if value.is_integer() else number(value) for (value,) in numbers)
    return f"{mean} ({low} to {high})" if len(values) > 1 else mean


def probability_of_improvement(values: np.ndarray, others: np.ndarray) -> float:
    """Compute how likely a run of one configuration is better than one of another (arXiv 2108.13264).

    Ties count as one half.

    Args:
        values: of the runs of the configuration, [runs].
        others: of the runs of the other one, [other runs].
    """
    return float((1 + np.sign(values[:, None] - others)).mean() / 2)


def compare(groups: Groups) -> list[dict[str, Any]]:
    """Return a row for each configuration: means over its seeds, and how likely it improves on the first configuration.

    The probability compares evaluations if all runs have one, and training otherwise. It needs several seeds.
    """
    columns = outcomes(groups)
    objective = "eval/return" if all(run.evaluations for runs in groups.values() for run in runs) else "return_mean_100"
    rows, (baseline, first) = list[dict[str, Any]](), next(iter(groups.items()))
    for name, runs in groups.items():
        means = {column: mean_and_interval(last_values(runs, column)) for column in columns}
        what = f"{mean_name(len(runs))} (95 % interval)"
        rows.append({"configuration": name, "seeds": len(runs), "last values": what} | means)
        pair = last_values(runs, objective), last_values(first, objective)
        if name != baseline and min(map(len, pair)) > 1:
            rows[-1][f"P(higher {objective} than {baseline})"] = f"{probability_of_improvement(*pair):.2f}"
    return rows
