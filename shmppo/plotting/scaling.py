"""The figure of `python -m shmppo.bench scaling`: rates, speed-up, and efficiency, and the split of time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shmppo.plotting.plots import COLORS, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("sampling", "optimization", "communication", "waiting", "other")
"""Parts into which the time of an iteration is split."""
RATES = {
    "steps_per_second": "total",
    "experience_steps_per_second": "experience",
    "learning_steps_per_second": "learning",
}
"""Columns of rates, and their names in the legend."""


def plot_scaling(rows: list[dict[str, Any]], curves: list[dict[str, Any]], out: Path, caption: str = "") -> None:
    """Draw the table of `bench scaling`, and the learning curves if there are any.

    Args:
        rows: rows of the table.
        curves: rows of the learning curves; may be empty.
        out: file to write.
        caption: text below the figure.

    Raises:
        ConfigError: if matplotlib is missing, or if `out` cannot be written.
    """
    figure, axes = new_figure(2, 3, width=3.8)
    _speedup(axes[0], axes[1], rows)
    shown = [row for row in rows if row["mode"] == "strong"] or [row for row in rows if row["mode"] == "weak"]
    shown = [row for row in shown if row["learning"] == shown[-1]["learning"]]
    _rates(axes[2], shown, "workers", f"{shown[0]['mode']}, {shown[0]['learning']} learning" if shown else "")
    _rates(axes[3], [row for row in rows if row["mode"] == "envs"], "num_envs", "one worker, central learning")
    _split(axes[4], shown)
    _curves(axes[5], curves)
    save(figure, out, caption)


def _speedup(speedup: Axes, efficiency: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw speed-up with the fit of Amdahl's law, and efficiency, against workers."""
    groups = dict.fromkeys((row["mode"], row["learning"]) for row in rows if row["mode"] != "envs")
    for (mode, learning), color in zip(groups, COLORS, strict=False):
        group = [row for row in rows if (row["mode"], row["learning"]) == (mode, learning)]
        workers = np.array([float(row["workers"]) for row in group])
        style = "o-" if mode == "strong" else "s--"
        name = f"{mode}, {learning}"
        if mode == "strong":
            serial = float(group[0]["serial_fraction"])
            name += f", serial {serial:.2f}"
            dense = np.linspace(workers[0], workers[-1], 100)
            fit = 1 / (serial + (1 - serial) * workers[0] / dense)
            speedup.plot(dense, fit, ":", color=color, linewidth=1)
        speedup.plot(workers, [float(row["speedup"]) for row in group], style, color=color, markersize=4, label=name)
        values = [float(row["efficiency"]) for row in group]
        efficiency.plot(workers, values, style, color=color, markersize=4, linewidth=1, label=f"{mode}, {learning}")
        values = [float(row["collect_efficiency"]) for row in group]
        if mode == "weak":
            name = f"sampling alone, {learning}"
            efficiency.plot(workers, values, "^-", color=color, markersize=4, linewidth=1, label=name)
    efficiency.set_ylim(0, 1.1)
    label(speedup, "workers", "speed-up S", "whole iteration; dotted: Amdahl's law")
    label(efficiency, "workers", "efficiency E = S / W")
    for axis in (speedup, efficiency):
        if groups:
            _powers_of_2(axis, sorted({float(row["workers"]) for row in rows if row["mode"] != "envs"}))
            axis.legend(fontsize=6, frameon=False)


def _powers_of_2(axis: Axes, values: list[float]) -> None:
    """Make the x axis logarithmic, with a tick at each value."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:.0f}" for value in values])


def _rates(axis: Axes, rows: list[dict[str, Any]], over: str, title: str) -> None:
    """Draw the steps per second against the column `over`: workers or num_envs."""
    for (column, name), color in zip(RATES.items(), COLORS, strict=False):
        x, y = ([float(row[c]) for row in rows] for c in (over, column))
        axis.plot(x, y, "o-", color=color, markersize=4, label=name)
    if rows:
        _powers_of_2(axis, [float(row[over]) for row in rows])
        axis.set_yscale("log")
        axis.legend(fontsize=7, frameon=False)
    label(axis, "workers" if over == "workers" else "environments", "environment steps per second", title)


def _split(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw the time of an iteration as bars, split into PARTS."""
    bottom = np.zeros(len(rows))
    names = [f"{float(row['workers']):.0f}" for row in rows]
    for part, color in zip(PARTS, COLORS, strict=False):
        seconds = np.array([1e3 * float(row[f"{part}_seconds"]) for row in rows])
        axis.bar(names, seconds, bottom=bottom, color=color, label=part)
        bottom += seconds
    axis.set_ylim(0, 1.5 * bottom.max(initial=1e-3))  # leave space for the legend
    axis.legend(fontsize=6, frameon=False, ncols=2, loc="upper center")
    label(axis, "workers", "milliseconds per iteration", "time by part")


def _curves(axis: Axes, curves: list[dict[str, Any]]) -> None:
    """Draw returns against steps. All curves are equal, because the number of workers does not change the weights."""
    groups = dict.fromkeys((row["learning"], row["workers"]) for row in curves)
    for i, (learning, workers) in enumerate(groups):
        points = [row for row in curves if (row["learning"], row["workers"]) == (learning, workers)]
        x, y = ([float(row[c]) for row in points] for c in ("env_steps", "return_mean_100"))
        width = 1.4 + 1.6 * (len(groups) - 1 - i)  # earlier curves are wider, so that equal curves stay visible
        axis.plot(x, y, color=COLORS[i % len(COLORS)], linewidth=width, label=f"{learning}, W = {workers}")
    if not curves:
        axis.set_axis_off()
        return
    axis.legend(fontsize=6, frameon=False)
    label(axis, "environment steps", "return, last 100 episodes", "the same curve for every W")
