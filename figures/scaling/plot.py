"""Plot scaling.csv: python -m figures.scaling.plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.bench.measured_run import PARTS
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = Path(__file__).with_name("scaling.csv")
NOTE = "Task A with N environments; the same batch for every number of workers W."
RATES = {
    "steps_per_second": "total",
    "experience_steps_per_second": "experience",
    "learning_steps_per_second": "learning",
}
"""Columns of rates, and their names in the legend."""


def plot_scaling(rows: list[dict[str, Any]], out: Path, caption: str = "") -> None:
    """Draw the table of `bench scaling`.

    Args:
        rows: rows of the table.
        out: file to write.
        caption: text below the figure.

    Raises:
        ConfigError: if matplotlib is missing, or if `out` cannot be written.
    """
    best = max(rows, key=lambda row: float(row["speedup"]))
    headline = f"{best['workers']} workers are {float(best['speedup']):.1f} times as fast as one"
    figure, axes = new_figure(2, 2, height=2.5, headline=headline)
    _speedup(axes[0], axes[1], rows)
    shown = [row for row in rows if _line(row) == _line(best)]
    _rates(axes[2], shown, f"Rates: {_line(best)}")
    _split(axes[3], shown, f"Time by part: {_line(best)}")
    save(figure, out, caption)


def _line(row: dict[str, Any]) -> str:
    """Return what the rows of one line have in common."""
    return f"{row['learning']}, N = {row['num_envs']}"


def _speedup(speedup: Axes, efficiency: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw speed-up with the fit of Amdahl's law, and efficiency, against workers."""
    for name, color in zip(dict.fromkeys(map(_line, rows)), COLORS, strict=False):
        group = [row for row in rows if _line(row) == name]
        workers = np.array([float(row["workers"]) for row in group])
        serial = float(group[0]["serial_fraction"])
        dense = np.linspace(workers[0], workers[-1], 100)
        speedup.plot(dense, 1 / (serial + (1 - serial) * workers[0] / dense), ":", color=color, linewidth=1)
        values = [float(row["speedup"]) for row in group]
        speedup.plot(workers, values, "o-", color=color, label=f"{name} (serial {serial:.2f})")
        efficiency.plot(workers, [float(row["efficiency"]) for row in group], "o-", color=color)
    label(speedup, "workers", "speed-up S", "Speed-up (dotted: Amdahl's law)")
    label(efficiency, "workers", "efficiency E = S / W", "Efficiency (colors as on the left)")
    for axis in (speedup, efficiency):
        _powers_of_2(axis, sorted({float(row["workers"]) for row in rows}))
    _legend_above(speedup, 3, columns=1)
    efficiency.set_ylim(bottom=0)


def _legend_above(axis: Axes, lines: int, columns: int) -> None:
    """Draw the legend at the top of a panel, above the data.

    Args:
        axis: the panel. The range of its y axis grows to make space.
        lines: lines of text that need space.
        columns: entries per line of the legend.
    """
    bottom, top = axis.get_ylim()
    axis.set_ylim(bottom, bottom + (top - bottom) / (1 - 0.04 - 0.11 * lines))
    axis.legend(loc="upper left", ncols=columns, columnspacing=1.2, handlelength=1.6)


def _powers_of_2(axis: Axes, values: list[float]) -> None:
    """Make the x axis logarithmic, with a tick at each value."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:.0f}" for value in values])


def _rates(axis: Axes, rows: list[dict[str, Any]], title: str) -> None:
    """Draw the steps per second against workers."""
    workers = [float(row["workers"]) for row in rows]
    for (column, name), color in zip(RATES.items(), COLORS, strict=False):
        axis.plot(workers, [float(row[column]) for row in rows], "o-", color=color, label=name)
    _powers_of_2(axis, workers)
    axis.set_ylim(bottom=0)
    group_thousands(axis, "y")
    _legend_above(axis, 1, columns=len(RATES))
    label(axis, "workers", "steps per second", title)


def _split(axis: Axes, rows: list[dict[str, Any]], title: str) -> None:
    """Draw the time of an iteration as bars, split into PARTS."""
    bottom = np.zeros(len(rows))
    names = [f"{float(row['workers']):.0f}" for row in rows]
    for part, color in zip(PARTS, COLORS, strict=False):
        seconds = np.array([1e3 * float(row[f"{part}_seconds"]) for row in rows])
        axis.bar(names, seconds, bottom=bottom, color=color, label=part)
        bottom += seconds
    axis.grid(visible=False, axis="x")
    _legend_above(axis, 3, columns=2)
    label(axis, "workers", "milliseconds per iteration", title)


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    plot_scaling(read_rows(TABLE), out, caption(TABLE, NOTE))


if __name__ == "__main__":
    main()
