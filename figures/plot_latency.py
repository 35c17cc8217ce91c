"""figures/data/latency.csv → figures/latency.svg

python figures/plot_latency.py
"""

from __future__ import annotations

import csv
import json

import numpy as np
from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

TAILS = {"none": "always 10 ms", "exponential": "exponential", "pareto": "heavy tail (Pareto 1.5)"}


def main() -> None:
    out = output("latency", __doc__)
    with open(DATA / "latency.csv", newline="") as file:
        table = list(csv.DictReader(file))
    cores = json.loads((DATA / "latency.json").read_text())["cores"]
    figure, axes = new_figure(1, 2)
    for (tail, name), color in zip(TAILS.items(), COLOURS, strict=False):
        rows = [row for row in table if row["tail"] == tail]
        if not rows:
            continue
        workers, collect, whole, sampling, every = (
            np.array([float(row[c]) for row in rows])
            for c in ("workers", "collect_seconds", "iteration_seconds", "collect_efficiency", "efficiency")
        )
        axes[0].plot(workers, sampling, "o-", color=color, markersize=4, label=name)
        axes[1].plot(workers, every, "o-", color=color, markersize=4, label=name)
        # Sampling waits for all workers at once; learning is W times the work, on as many cores as there are.
        learning = (whole[0] - collect[0]) * workers / np.minimum(workers, cores)
        axes[1].plot(workers, whole[0] / (collect[0] + learning), ":", color=color, linewidth=1)
    for axis, title in zip(axes, ("sampling alone", "whole iteration; dotted: learning shares the cores"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(workers, [f"{w:.0f}" for w in workers])
        axis.set_ylim(0, 1.1)
        label(axis, "workers, one environment each", "efficiency E", title)
        axis.legend(fontsize=7, frameon=False)
    save(figure, out, caption("latency", note="Steps that sleep 10 ms in the mean."))


if __name__ == "__main__":
    main()
