"""figures/data/peers.csv → figures/peers.svg

python figures/plot_peers.py
"""

from __future__ import annotations

import csv

import numpy as np
from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

TITLES = {
    "A": "task A: HalfCheetah-v5, 16 environments",
    "A-envpool": "the same with EnvPool on both sides",
    "B": "task B: CartPole-v1, 64 environments",
}


def main() -> None:
    out = output("peers", __doc__)
    with open(DATA / "peers.csv", newline="") as file:
        table = list(csv.DictReader(file))
    titles = {task: title for task, title in TITLES.items() if any(row["task"] == task for row in table)}
    figure, axes = new_figure(1, len(titles), width=5.2, height=3.0)
    for axis, (task, title) in zip(axes, titles.items(), strict=True):
        rows = sorted((row for row in table if row["task"] == task), key=lambda row: float(row["steps_per_second"]))
        rates, lows, highs = ([float(row[c]) for row in rows] for c in ("steps_per_second", "lowest", "highest"))
        spread = np.abs(np.array([lows, highs]) - rates)
        colors = [COLOURS[0] if row["trainer"].startswith("shmppo") else COLOURS[-1] for row in rows]
        names = [row["trainer"] for row in rows]
        axis.barh(names, rates, xerr=spread, color=colors, error_kw={"linewidth": 0.8, "capsize": 2})
        for i, (rate, high) in enumerate(zip(rates, highs, strict=True)):
            axis.text(high, i, f"  {rate:,.0f}", va="center", fontsize=7)
        axis.set_xlim(0, 1.15 * max(highs))
        label(axis, "environment steps per second, end to end", "", title)
    repetitions = ", ".join(sorted({row["repetitions"] for row in table}))
    save(figure, out, caption("peers", note=f"Medians of {repetitions} interleaved repetitions, whiskers all of them."))


if __name__ == "__main__":
    main()
