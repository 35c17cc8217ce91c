"""Curves of finished and running runs: metrics.csv read, runs grouped by configuration, aggregated over seeds."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.errors import ConfigError

POINTS = 200
RESAMPLES = 1000
NOT_COMPARED = (
    "seed", "run_dir", "quiet", "worker_timeout", "max_restarts", "checkpoint_every", "checkpoint_minutes",
    "keep_checkpoints", "replay_limit", "stop_at_iteration", "rank_timeout", "kl_profile_every", "step_times", "track",
    "eval_every", "eval_episodes", "eval_videos",
)  # fmt: skip
"""Fields in which runs of one group may differ: the seed, and what cannot change a curve."""


@dataclass(frozen=True)
class Run:
    """One run as its directory tells it."""

    directory: Path
    config: dict[str, Any]
    """Fields of the configuration; empty where there is no config.json."""
    columns: dict[str, np.ndarray]
    """Columns of metrics.csv, each [iterations]; NaN where nothing was known."""


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """The numbers of a CSV file with a header, by column. A last line still being written is left out."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    if not rows:
        raise ConfigError(f"{path} has no rows yet; wait for the first iteration")
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def read_run(run_dir: Path) -> Run:
    """Raises ConfigError where the directory holds no metrics.csv, or an empty one."""
    metrics, config = run_dir / "metrics.csv", run_dir / "config.json"
    if not metrics.is_file():
        raise ConfigError(f"{metrics} does not exist; name the directories of runs (they hold metrics.csv)")
    try:
        fields = json.loads(config.read_text())["config"] if config.is_file() else {}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{config} is damaged ({error}); restore it, or remove it to plot the run by itself"
        ) from error
    return Run(run_dir, fields, read_columns(metrics))


def group_runs(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but NOT_COMPARED, under a label that names what tells the groups apart."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        fields = {k: v for k, v in run.config.items() if k not in NOT_COMPARED} or {"run": str(run.directory)}
        groups.setdefault(json.dumps(fields, sort_keys=True), []).append(run)
    every = [json.loads(key) for key in groups]
    names = sorted(set().union(*every))
    # A run of another version may lack a field.
    differing = [name for name in names if len({json.dumps(fields.get(name, "absent")) for fields in every}) > 1]
    labels = [", ".join(f"{name} {_short(fields[name])}" for name in differing if name in fields) for fields in every]
    if len(every) == 1:
        labels = [str(every[0].get("env", every[0].get("run")))]
    members = groups.values()
    labels = [text or str(runs[0].directory) for text, runs in zip(labels, members, strict=True)]
    return dict(zip(labels, members, strict=True))


def _short(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Aggregate:
    """A quantity of several runs on one grid; every array is [POINTS]."""

    x: np.ndarray
    mean: np.ndarray
    iqm: np.ndarray
    low: np.ndarray
    """Ends of the 95 % bootstrap interval of the interquartile mean."""
    high: np.ndarray
    runs: int


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean over axis −2 (runs) without its lowest and its highest quarter, each rounded down (arXiv 2108.13264)."""
    runs = values.shape[-2]
    cut = runs // 4
    return np.sort(values, axis=-2)[..., cut : runs - cut, :].mean(axis=-2)


def bootstrap_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the 95 % interval of the interquartile mean of values [runs, n], by drawing runs again; each [n]."""
    runs = len(values)
    draws = np.random.default_rng(0).integers(runs, size=(RESAMPLES, runs))
    low, high = np.percentile(interquartile_mean(values[draws]), [2.5, 97.5], axis=0)
    return low, high


def aggregate(runs: list[Run], column: str, over: str) -> Aggregate | None:
    """A column of several runs, interpolated to one grid over the stretch that all of them cover.

    Args:
        column: what is aggregated, over: the column to draw it against, which must grow.

    Returns:
        None where a run has no two known values, or no stretch is common to all.
    """
    known = []
    for run in runs:
        x, y = run.columns.get(over), run.columns.get(column)
        if x is None or y is None or np.isfinite(y).sum() < 2:
            return None
        finite = np.isfinite(y)
        known.append((x[finite], y[finite]))
    begin, end = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if begin >= end:
        return None
    grid = np.linspace(begin, end, POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in known])  # [runs, POINTS]
    low, high = bootstrap_interval(values)
    return Aggregate(grid, values.mean(axis=0), interquartile_mean(values), low, high, len(runs))


def phase_shares(run: Run, phases: tuple[str, ...]) -> np.ndarray:
    """Share of each iteration's time by phase, [phases, iterations]."""
    seconds = np.stack([run.columns[f"{phase}_seconds"] for phase in phases])
    return seconds / seconds.sum(axis=0)
