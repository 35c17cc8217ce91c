"""Plot returns.csv and the learning curves, and write returns-by-task.csv: python -m figures.returns.plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.marks import REFERENCE_LINE
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows, write_rows
from shmppo.plotting.curves import bootstrap_interval, interquartile_mean
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = Path(__file__).with_name("returns.csv")
BY_TASK = TABLE.with_name("returns-by-task.csv")
CURVES = TABLE.with_name("curves")


class Panel(NamedTuple):
    """A panel of the picture."""

    tasks: dict[str, str]
    """Task of the table -> its name in the legend. The return of the first one is compared."""
    reference: float
    """The target of the median return, or a published return."""
    column: str
    """Column of the table that is compared."""
    source: str = "target"
    """Where the reference comes from."""


PANELS = {
    "CartPole-v1": Panel({"cartpole": "no memory"}, 475, "evaluate_return"),
    "CartPole-v1, velocities hidden": Panel(
        {"cartpole_memory": "LSTM", "cartpole_memoryless": "no memory"}, 475, "evaluate_return"
    ),
    "Pendulum-v1, velocity hidden": Panel({"pendulum_memory": "LSTM"}, -250, "evaluate_return"),
    "MountainCar, velocity hidden": Panel({"mountaincar_memory": "LSTM"}, 88, "evaluate_return"),
    "Acrobot-v1": Panel({"acrobot": "no memory"}, -100, "train_return_100"),
    "HalfCheetah-v5": Panel({"halfcheetah": "no memory"}, 3500, "train_return_100"),
    "Hopper-v5": Panel({"hopper": "no memory"}, 2000, "train_return_100"),
    "Walker2d-v5": Panel({"walker2d": "no memory"}, 2600, "train_return_100"),
    "Swimmer-v5": Panel({"swimmer": "no memory"}, 360, "train_return_100"),
    "Ant-v5": Panel({"ant": "no memory"}, 1327, "train_return_100", "RL Zoo (v3)"),
    "Humanoid-v4": Panel({"humanoid_v4": "no memory"}, 716, "train_return_100", "CleanRL"),
    "LunarLander-v3": Panel({"lunarlander": "no memory"}, 200, "train_return_100"),
    "MiniGrid-MemoryS9": Panel({"minigrid_memory": "LSTM"}, 0.85, "train_return_100"),
    "Pong": Panel({"pong": "LSTM"}, 19, "train_return_100"),
}
PANELS_PER_ROW = 3
NETWORK_COLORS = {"LSTM": COLORS[0], "no memory": COLORS[1]}


def by_task(table: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the median, the interquartile mean, and its 95 % bootstrap interval over the seeds of each task."""
    rows = []
    for tasks, reference, column, source in PANELS.values():
        for task in tasks:
            values = np.array([[float(row[column])] for row in table if row["task"] == task])
            if len(values) == 0:
                continue
            low, high = bootstrap_interval(values)
            numbers = {
                "median": np.median(values),
                "interquartile_mean": interquartile_mean(values)[0],
                "low": low[0],
                "high": high[0],
            }
            rows.append(
                {
                    "task": task,
                    "return": column,
                    "target": reference if source == "target" else "",
                    "seeds": len(values),
                }
                | {name: round(float(number), 2) for name, number in numbers.items()}
            )
    return rows


def finding(panel: Panel, medians: dict[str, float]) -> str:
    """Describe the result of a panel: the median of each of its tasks, and the reference."""
    values = [_signed(medians[task]) for task in panel.tasks if task in medians]
    return f"median {' and '.join(values)}; {panel.source} {_signed(panel.reference)}"


def _signed(value: float) -> str:
    """Format a return with four significant digits at most, and with a minus sign."""
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")


def draw_key(axis: Axes) -> None:
    """Explain the colors and the lines, in a panel without data."""
    from matplotlib.lines import Line2D

    axis.set_axis_off()
    handles = [Line2D([], [], color=color, label=name) for name, color in NETWORK_COLORS.items()]
    handles.append(Line2D([], [], **REFERENCE_LINE, label="target, or published return"))
    handles.append(Line2D([], [], color="#222222", marker="o", linestyle="", fillstyle="none", label="evaluation"))
    axis.legend(handles=handles, loc="center left", fontsize=9)


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    results = by_task(table)
    write_rows(BY_TASK, results, note=None)
    medians = {row["task"]: row["median"] for row in results}
    panels = {title: panel for title, panel in PANELS.items() if medians.keys() & panel.tasks.keys()}
    with_target = [panel for panel in panels.values() if panel.source == "target"]
    reached = sum(medians[next(iter(panel.tasks))] >= panel.reference for panel in with_target)
    headline = f"The median return reaches its target on {reached} of {len(with_target)} tasks"
    rows = len(panels) // PANELS_PER_ROW + 1  # leaves a panel for the key
    figure, axes = new_figure(rows, PANELS_PER_ROW, height=2.1, headline=headline)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for i, (axis, (title, panel)) in enumerate(zip(axes, panels.items(), strict=False)):
        axis.axhline(panel.reference, **REFERENCE_LINE)
        for task, name in panel.tasks.items():
            draw_curve(axis, CURVES, task, "return_mean_100", name, NETWORK_COLORS[name])
            draw_evaluations(axis, [row for row in table if row["task"] == task], NETWORK_COLORS[name])
        group_thousands(axis, ticks=3)
        y_label = "return" if i % PANELS_PER_ROW == 0 else ""
        label(axis, "environment steps", y_label, f"{title}\n{finding(panel, medians)}")
    draw_key(axes[len(panels)])
    save(figure, out, caption(TABLE, NOTE, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
