"""figures/data/returns.csv and curves/*.csv → figures/returns.svg

python figures/plot_returns.py
"""

from __future__ import annotations

import csv

from provenance import DATA, caption, output

from shmppo.curves import Run, aggregate, read_columns
from shmppo.plot import COLOURS, SEEDS_CAPTION, draw_aggregate, label, new_figure, save

PANELS = {
    "CartPole-v1, velocities hidden": ({"cartpole_memory": "LSTM", "cartpole_memoryless": "no memory"}, 475),
    "Pendulum-v1, velocity hidden": ({"pendulum_memory": "LSTM"}, -250),
    "HalfCheetah-v5": ({"halfcheetah": "no memory"}, 1350),
}
"""Title → (task of the table → its name in the legend, return to reach)."""


def main() -> None:
    out = output("returns", __doc__)
    with open(DATA / "returns.csv", newline="") as file:
        table = list(csv.DictReader(file))
    figure, axes = new_figure(1, len(PANELS), width=3.4)
    for axis, (title, (tasks, target)) in zip(axes, PANELS.items(), strict=True):
        axis.axhline(target, color="#888888", linewidth=0.8, linestyle=":", label=f"target {target}")
        for (task, name), colour in zip(tasks.items(), COLOURS, strict=False):
            runs = [Run(path, {}, read_columns(path)) for path in sorted((DATA / "curves").glob(f"{task}-s*.csv"))]
            curve = aggregate(runs, "return_mean_100", "env_steps")
            if curve is not None:
                draw_aggregate(axis, curve, name, colour)
            rows = [row for row in table if row["task"] == task]
            steps, returns = ([float(row[c]) for row in rows] for c in ("env_steps", "evaluate_return"))
            axis.plot(steps, returns, "o", color=colour, markersize=4, fillstyle="none")
        label(axis, "environment steps", "return, last 100 episodes", title)
        axis.legend(fontsize=7, frameon=False)
    seeds = ", ".join(sorted({row["seed"] for row in table}))
    save(figure, out, caption("returns", seeds=seeds, note=f"{SEEDS_CAPTION} Circles: deterministic evaluation."))


if __name__ == "__main__":
    main()
