"""figures/data/returns.csv and curves/*.csv → figures/returns.svg, and figures/data/returns-by-task.csv

python figures/plot_returns.py
"""

from __future__ import annotations

import csv

import numpy as np
from provenance import DATA, caption, output

from shmppo.plotting.curves import Run, aggregate, bootstrap_interval, interquartile_mean, read_columns
from shmppo.plotting.plots import COLOURS, SEEDS_CAPTION, draw_aggregate, label, new_figure, save

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
    "Pong from single frames, its first million steps": ({"pong": "LSTM"}, 19, "train_return_100"),
}  # fmt: skip
"""Title → (task of the table → its name in the legend, return to reach, which return that is)."""
COLUMNS = 3


def by_task(table: list[dict[str, str]]) -> list[dict[str, object]]:
    """For each task the median, interquartile mean and its 95 % bootstrap interval over seeds."""
    rows = []
    for tasks, target, column in PANELS.values():
        for task in tasks:
            values = np.array([[float(row[column])] for row in table if row["task"] == task])
            if len(values) == 0:
                continue
            low, high = bootstrap_interval(values)
            numbers = (np.median(values), interquartile_mean(values)[0], low[0], high[0])
            median, iqm, low_end, high_end = (round(float(n), 2) for n in numbers)
            rows.append({
                "task": task, "return": column, "target": target, "seeds": len(values), "median": median,
                "interquartile_mean": iqm, "low": low_end, "high": high_end,
            })  # fmt: skip
    return rows


def main() -> None:
    out = output("returns", __doc__)
    with open(DATA / "returns.csv", newline="") as file:
        table = list(csv.DictReader(file))
    summary = by_task(table)
    with open(DATA / "returns-by-task.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(summary[0]))
        writer.writeheader()
        writer.writerows(summary)
    measured = {row["task"] for row in table}
    panels = {title: panel for title, panel in PANELS.items() if measured & panel[0].keys()}
    figure, axes = new_figure(-(-len(panels) // COLUMNS), COLUMNS, width=3.4)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, (tasks, target, _)) in zip(axes, panels.items(), strict=False):
        axis.axhline(target, color="#888888", linewidth=0.8, linestyle=":", label=f"target {target}")
        for (task, name), color in zip(tasks.items(), COLOURS, strict=False):
            runs = [Run(path, {}, read_columns(path)) for path in sorted((DATA / "curves").glob(f"{task}-s*.csv"))]
            curve = aggregate(runs, "return_mean_100", "env_steps") if runs else None
            if curve is not None:
                draw_aggregate(axis, curve, name, color)
            rows = [row for row in table if row["task"] == task]
            steps, returns = ([float(row[c]) for row in rows] for c in ("env_steps", "evaluate_return"))
            axis.plot(steps, returns, "o", color=color, markersize=4, fillstyle="none")
        label(axis, "environment steps", "return, last 100 episodes", title)
        axis.legend(fontsize=7, frameon=False)
    seeds = ", ".join(sorted({row["seed"] for row in table}))
    save(figure, out, caption("returns", seeds=seeds, note=f"{SEEDS_CAPTION} Circles: deterministic evaluation."))


if __name__ == "__main__":
    main()
