"""Drawing of learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from figures.common.tables import Row
from shmppo.plotting.curves import Run, aggregate, read_columns
from shmppo.plotting.plots import draw_aggregate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "Line: mean over the seeds (from 4 on, the interquartile mean) with its 95 % bootstrap interval; circles: final "
    "evaluation."
)


def draw_curve(axis: Axes, folder: Path, name: str, column: str, label: str, color: str) -> None:
    """Draw a column of the curves NAME-sSEED.csv of a folder against environment steps, aggregated over the seeds."""
    runs = [Run(file, {}, read_columns(file)) for file in sorted(folder.glob(f"{name}-s[0-9]*.csv"))]
    curve = aggregate(runs, column, "env_steps") if runs else None
    if curve is not None:
        draw_aggregate(axis, curve, label, color)


def draw_evaluations(axis: Axes, rows: Sequence[Row], color: str, column: str = "evaluate_return") -> None:
    """Draw a column of the final evaluation of each run as a circle."""
    steps, values = ([float(row[name]) for row in rows] for name in ("env_steps", column))
    axis.plot(steps, values, "o", color=color, markersize=4, fillstyle="none")
