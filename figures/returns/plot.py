"""Plot returns.csv and the learning curves, and write returns-by-task.csv: python -m figures.returns.plot"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows, write_rows
from shmppo.plotting.curves import bootstrap_interval, interquartile_mean
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("returns.csv")
BY_TASK = TABLE.with_name("returns-by-task.csv")
CURVES = TABLE.with_name("curves")
PANELS = {
    "CartPole-v1": ({"cartpole": "no memory"}, 475, "evaluate_return"),
    "CartPole-v1, velocities hidden": (
        {"cartpole_memory": "LSTM", "cartpole_memoryless": "no memory"}, 475, "evaluate_return",
    ),
    "Pendulum-v1, velocity hidden": ({"pendulum_memory": "LSTM"}, -250, "evaluate_return"),
    "MountainCarContinuous-v0, velocity hidden": ({"mountaincar_memory": "LSTM"}, 88, "evaluate_return"),
    "Acrobot-v1": ({"acrobot": "no memory"}, -100, "train_return_100"),
    "HalfCheetah-v5": ({"halfcheetah": "no memory"}, 1350, "train_return_100"),
    "Hopper-v5": ({"hopper": "no memory"}, 2000, "train_return_100"),
    "Walker2d-v5": ({"walker2d": "no memory"}, 2600, "train_return_100"),
    "MiniGrid-MemoryS9-v0": ({"minigrid_memory": "LSTM"}, 0.85, "train_return_100"),
    "Pong from single frames, first million steps": ({"pong": "LSTM"}, 19, "train_return_100"),
}  # fmt: skip
"""Title -> ({task of the table: its name in the legend}, target, column that the target refers to)."""
PANELS_PER_ROW = 3


def by_task(table: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the median, the interquartile mean, and its 95 % bootstrap interval over the seeds of each task."""
    rows = []
    for tasks, target, column in PANELS.values():
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
                {"task": task, "return": column, "target": target, "seeds": len(values)}
                | {name: round(float(number), 2) for name, number in numbers.items()}
            )
    return rows


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    write_rows(BY_TASK, by_task(table), note=None)
    measured = {row["task"] for row in table}
    panels = {title: panel for title, panel in PANELS.items() if measured & panel[0].keys()}
    figure, axes = new_figure(-(-len(panels) // PANELS_PER_ROW), PANELS_PER_ROW, width=3.4)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, (tasks, target, _)) in zip(axes, panels.items(), strict=False):
        axis.axhline(target, color="#888888", linewidth=0.8, linestyle=":", label=f"target {target}")
        for (task, name), color in zip(tasks.items(), COLORS, strict=False):
            draw_curve(axis, CURVES, task, "return_mean_100", name, color)
            draw_evaluations(axis, [row for row in table if row["task"] == task], color)
        label(axis, "environment steps", "return, last 100 episodes", title)
        axis.legend(fontsize=7, frameon=False)
    save(figure, out, caption(TABLE, seeds=distinct(table, "seed"), note=NOTE))


if __name__ == "__main__":
    main()
