"""Plot scaling.csv and scaling-curves.csv: python -m figures.scaling.plot"""

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
NOTE = "Task A; strong: the same total batch for every number of workers W; weak: the same batch per worker."
RATES = {
    "steps_per_second": "total",
    "experience_steps_per_second": "experience",
    "learning_steps_per_second": "learning",
}
"""Columns of rates, and their names in the legend."""


def plot_scaling(rows: list[dict[str, Any]], curves: list[dict[str, Any]], out: Path, caption: str = "") -> None:
    """Draw the table of `bench scaling`, and the learning curves.

    Args:
        rows: rows of the table.
        curves: rows of the learning curves; may be empty.
        out: file to write.
        caption: text below the figure.

    Raises:
        ConfigError: if matplotlib is missing, or if `out` cannot be written.
    """
    figure, axes = new_figure(3, 2, height=2.5, headline=_headline(rows))
    _speedup(axes[0], axes[1], rows)
    shown = [row for row in rows if row["mode"] == "strong"] or [row for row in rows if row["mode"] == "weak"]
    shown = [row for row in shown if row["learning"] == shown[-1]["learning"]]
    kind = f"{shown[0]['mode']}, {shown[0]['learning']} learning" if shown else ""
    _rates(axes[2], shown, "workers", f"Rates: {kind}")
    _rates(axes[3], [row for row in rows if row["mode"] == "envs"], "num_envs", "Rates: one worker, central learning")
    _split(axes[4], shown, f"Time by part: {kind}")
    _curves(axes[5], curves)
    save(figure, out, caption)


def _headline(rows: list[dict[str, Any]]) -> str:
    """Describe the largest speed-up at a fixed total batch; an empty text if that was not measured."""
    strong = [row for row in rows if row["mode"] == "strong"]
    if not strong:
        return ""
    best = max(strong, key=lambda row: float(row["speedup"]))
    first = min(float(row["workers"]) for row in strong)
    return (
        f"{best['learning'].capitalize()} learning with {float(best['workers']):.0f} workers is "
        f"{float(best['speedup']):.2f} times as fast as with {first:.0f}"
    )


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
            name += f" (serial {serial:.2f})"
            dense = np.linspace(workers[0], workers[-1], 100)
            fit = 1 / (serial + (1 - serial) * workers[0] / dense)
            speedup.plot(dense, fit, ":", color=color, linewidth=1)
        speedup.plot(workers, [float(row["speedup"]) for row in group], style, color=color, label=name)
        efficiency.plot(workers, [float(row["efficiency"]) for row in group], style, color=color)
        if mode == "weak":
            values = [float(row["collect_efficiency"]) for row in group]
            efficiency.plot(workers, values, "^:", color=color, label=f"sampling alone, {learning}")
    label(speedup, "workers", "speed-up S", "Speed-up (dotted: Amdahl's law)")
    label(efficiency, "workers", "efficiency E = S / W", "Efficiency (colors as on the left)")
    if groups:
        for axis in (speedup, efficiency):
            _powers_of_2(axis, sorted({float(row["workers"]) for row in rows if row["mode"] != "envs"}))
        _legend_above(speedup, 2, columns=1)  # the lines begin in the lower left corner, so 2 of 4 lines fit there
        efficiency.set_ylim(bottom=0)
    if any(mode == "weak" for mode, _ in groups):
        efficiency.legend(loc="lower left")


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


def _rates(axis: Axes, rows: list[dict[str, Any]], over: str, title: str) -> None:
    """Draw the steps per second against the column `over`: workers or num_envs."""
    if not rows:
        axis.set_axis_off()
        return
    for (column, name), color in zip(RATES.items(), COLORS, strict=False):
        x, y = ([float(row[c]) for row in rows] for c in (over, column))
        axis.plot(x, y, "o-", color=color, label=name)
    _powers_of_2(axis, [float(row[over]) for row in rows])
    axis.set_ylim(bottom=0)
    group_thousands(axis, "y")
    _legend_above(axis, 1, columns=len(RATES))
    label(axis, "workers" if over == "workers" else "environments", "steps per second", title)


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


def _curves(axis: Axes, curves: list[dict[str, Any]]) -> None:
    """Draw returns against steps. All curves are equal, because the number of workers does not change the weights."""
    if not curves:
        axis.set_axis_off()
        return
    groups = dict.fromkeys((row["learning"], row["workers"]) for row in curves)
    for i, (learning, workers) in enumerate(groups):
        points = [row for row in curves if (row["learning"], row["workers"]) == (learning, workers)]
        x, y = ([float(row[c]) for row in points] for c in ("env_steps", "return_mean_100"))
        width = 1.4 + 1.6 * (len(groups) - 1 - i)  # earlier curves are wider, so that equal curves stay visible
        axis.plot(x, y, color=COLORS[i % len(COLORS)], linewidth=width, label=f"{learning}, W = {workers}")
    group_thousands(axis)
    axis.legend(loc="upper left", handlelength=1.6)
    label(axis, "environment steps", "return, last 100 episodes", "Return: the same curve for every W")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    curves = read_rows(TABLE.with_name("scaling-curves.csv"))
    plot_scaling(read_rows(TABLE), curves, out, caption(TABLE, NOTE))


if __name__ == "__main__":
    main()
