"""Learning curves: read metrics.csv and eval.csv, group runs by configuration, and aggregate over seeds."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.checks import require
from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError, printable
from shmppo.loggers.metrics import HASHES
from shmppo.utils.files import complete_rows, read_object, refuse_links, short_path

POINTS = 200
"""Points of the common grid of an aggregate."""
RESAMPLES = 1000
"""Bootstrap resamples of a confidence interval."""
NEEDED = ("iteration", "env_steps", "wall_seconds", "environment_seconds")
"""Columns of metrics.csv that every plot needs."""
IGNORED_FIELDS = (*fields_with(TrainConfig, changes_curve=False), "workers", "learning")
"""Configuration fields in which runs of one group may differ: the seed, and fields that cannot change a curve."""


@dataclass(frozen=True)
class Run:
    """One run, as read from its directory."""

    directory: Path
    config: dict[str, Any]
    """Fields of the configuration; empty if there is no config.json."""
    columns: dict[str, np.ndarray]
    """Columns of metrics.csv, each [iterations]; NaN where there is no value."""
    evaluations: dict[str, np.ndarray] = field(default_factory=dict)
    """Columns of eval.csv and wall_seconds, each [evaluations]; empty if there are no evaluations."""

    def curve(self, column: str, over: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (x, y) of the rows in which a column has a finite value. None if there are fewer than two.

        Args:
            column: name of the column, of metrics.csv or of eval.csv.
            over: name of the column of the x axis.
        """
        table = self.columns if column in self.columns else self.evaluations
        if column not in table or over not in table:
            return None
        finite = np.isfinite(table[column])
        return (table[over][finite], table[column][finite]) if finite.sum() >= 2 else None


Groups = dict[str, list[Run]]
"""Runs that differ only in their seed, by the label of their group."""


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Read a CSV file of numbers with a header; returns its columns by name.

    An incomplete last line is skipped, because a training run may still be writing it. So are columns of text.

    Raises:
        ConfigError: if the file does not exist, has no complete row, or is damaged.
    """
    try:
        rows = complete_rows(path)
        if not rows:
            raise ConfigError(f"{path} has no rows yet; wait for the first iteration")
        names = [name for name in rows[0] if name not in HASHES]
        return {printable(name): np.array([float(row[name] or "nan") for row in rows]) for name in names}
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read ({error}); restore it, or name another run") from error


def read_run(run_dir: Path) -> Run:
    """Read metrics.csv, eval.csv, and config.json of a run.

    Raises:
        ConfigError: if metrics.csv is missing or has no rows, or if config.json is damaged.
    """
    refuse_links(run_dir)
    metrics, config = run_dir / "metrics.csv", run_dir / "config.json"
    if not metrics.is_file():
        raise ConfigError(f"{metrics} does not exist; name the directories of runs (they hold metrics.csv)")
    advice = "restore it, or remove it to plot the run without its configuration"
    stored = read_object(config, advice).get("config", {}) if config.is_file() else {}
    fields = {name: printable(value) if isinstance(value, str) else value for name, value in stored.items()}
    columns = read_columns(metrics)
    missing = [name for name in NEEDED if name not in columns]
    require(not missing, f"{metrics} has no column {''.join(missing[:1])}; name the directory of a run of train")
    return Run(run_dir, fields, columns, _read_evaluations(run_dir / "eval.csv", columns))


def _read_evaluations(path: Path, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Read eval.csv, and add the wall_seconds of each evaluated iteration. Empty if there are no evaluations."""
    try:
        evaluations = read_columns(path)
    except ConfigError:  # the first evaluation has not ended
        return {}
    require("iteration" in evaluations, f"{path} has no column iteration; remove this file to plot without it")
    seconds = np.interp(evaluations["iteration"], columns["iteration"], columns["wall_seconds"])
    return evaluations | {"wall_seconds": seconds}


def group_runs(runs: list[Run], names: Mapping[Path, str] | None = None) -> Groups:
    """Group runs whose configurations differ only in IGNORED_FIELDS.

    Args:
        runs: the runs.
        names: labels by run directory. Runs of the same configuration without a label get it too, and runs with the
            same label become one group.

    Returns:
        The groups by label. The label of a group without a given one has the fields in which the configurations differ.
        Another run of the same configuration and seed, for example a branch, is a group of its own.
    """
    given, runs = names or {}, list({run.directory: run for run in runs}.values())
    keys = [_key(run) for run in runs]
    labels = _configuration_labels(list(dict.fromkeys(keys)))
    labels |= {key: given[run.directory] for key, run in zip(keys, runs, strict=True) if run.directory in given}
    groups: Groups = {}
    seen = set[tuple[str, Any]]()
    for key, run in zip(keys, runs, strict=True):
        seed = run.config.get("seed")
        label = f"{labels[key]}, {short_path(run.directory)}" if (key, seed) in seen else labels[key]
        seen.add((key, seed))
        groups.setdefault(given.get(run.directory, label), []).append(run)
    return groups


def _key(run: Run) -> str:
    """Return the configuration of a run as JSON, without IGNORED_FIELDS.

    It also leaves out `anneal_steps` where they are `total_steps`, as they are by default.
    """
    fields = {name: value for name, value in run.config.items() if name not in IGNORED_FIELDS}
    if fields.get("anneal_steps") == fields.get("total_steps"):
        fields.pop("anneal_steps", None)
    return json.dumps(fields or {"run": str(run.directory)}, sort_keys=True)


def _configuration_labels(keys: list[str]) -> dict[str, str]:
    """Return a label for each configuration, given as JSON: the fields in which they differ, and their values."""
    configs = [json.loads(key) for key in keys]
    if len(configs) == 1:
        return {keys[0]: str(configs[0].get("env", configs[0].get("run")))}
    # A run of another version of shmppo may lack a field.
    names = sorted(set().union(*configs))
    differing = [name for name in names if len({json.dumps(fields.get(name, "absent")) for fields in configs}) > 1]
    labels = [", ".join(f"{name} {fields[name]}" for name in differing if name in fields) for fields in configs]
    return {key: label or f"without {', '.join(differing)}" for key, label in zip(keys, labels, strict=True)}


def short(value: Any) -> str:
    """Format the value of a field, a number with at most four digits."""
    if isinstance(value, list):
        return "×".join(map(short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Aggregate:
    """One column of several runs on a common grid. Every other array is [POINTS]."""

    x: np.ndarray
    values: np.ndarray
    """Those of each run, [runs, POINTS]."""
    mean: np.ndarray
    """`interquartile_mean` over the runs."""
    low: np.ndarray
    """Lower end of the 95 % bootstrap interval of the mean."""
    high: np.ndarray
    """Upper end of the same interval."""


def mean_name(runs: int) -> str:
    """Return what `interquartile_mean` computes over a number of runs. A quarter of fewer than 4 runs is none."""
    return "interquartile mean" if runs >= 4 else "mean"


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Average over axis −2 (runs) without the lowest and the highest quarter of the runs (arXiv 2108.13264).

    The number of runs in a quarter is rounded down.
    """
    runs = values.shape[-2]
    cut = runs // 4
    return np.sort(values, axis=-2)[..., cut : runs - cut, :].mean(axis=-2)


def bootstrap_interval(values: np.ndarray, average: Any = interquartile_mean) -> tuple[np.ndarray, np.ndarray]:
    """Compute the 95 % bootstrap interval of an average by resampling runs.

    Args:
        values: [runs, n].
        average: function that averages over axis −2.

    Returns:
        The lower and the upper end, each [n].
    """
    runs = len(values)
    draws = np.random.default_rng(0).integers(runs, size=(RESAMPLES, runs))
    low, high = np.percentile(average(values[draws]), [2.5, 97.5], axis=0)
    return low, high


def aggregate(runs: list[Run], column: str, over: str) -> Aggregate | None:
    """Aggregate a column over the runs that have at least two finite values, on a grid over the range they all cover.

    Args:
        runs: the runs, usually of one group.
        column: name of the column to aggregate.
        over: name of the column of the x axis. Its values must increase.

    Returns:
        None if there is no such run, or if no range is common to all of them.
    """
    known = [curve for curve in (run.curve(column, over) for run in runs) if curve is not None]
    if not known:
        return None
    begin, end = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if begin >= end:
        return None
    grid = np.linspace(begin, end, POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in known])  # [runs, POINTS]
    low, high = bootstrap_interval(values)
    return Aggregate(grid, values, interquartile_mean(values), low, high)
