"""Plot latency.csv: python -m figures.latency.plot"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("latency.csv")
TAILS = {"none": "always 10 ms", "exponential": "exponential", "pareto": "heavy tail (Pareto 1.5)"}
COLUMNS = ("workers", "collect_seconds", "iteration_seconds", "collect_efficiency", "efficiency")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    cores = json.loads(TABLE.with_suffix(".json").read_text())["cores"]
    figure, axes = new_figure(1, 2)
    for (tail, name), color in zip(TAILS.items(), COLORS, strict=False):
        rows = [row for row in table if row["tail"] == tail]
        if not rows:
            continue
        workers, collect, iteration, sampling_efficiency, efficiency = (
            np.array([float(row[column]) for row in rows]) for column in COLUMNS
        )
        axes[0].plot(workers, sampling_efficiency, "o-", color=color, markersize=4, label=name)
        axes[1].plot(workers, efficiency, "o-", color=color, markersize=4, label=name)
        # Sleeping workers do not need a core. Learning is W times the work of one worker, on a limited number of cores.
        learning = (iteration[0] - collect[0]) * workers / np.minimum(workers, cores)
        axes[1].plot(workers, iteration[0] / (collect[0] + learning), ":", color=color, linewidth=1)
    titles = ("sampling alone", "whole iteration; dotted: limit by the cores for learning")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(workers, [f"{count:.0f}" for count in workers])
        axis.set_ylim(0, 1.1)
        label(axis, "workers, one environment each", "efficiency E", title)
        axis.legend(fontsize=7, frameon=False)
    save(figure, out, caption(TABLE, note="Environment steps sleep 10 ms on average."))


if __name__ == "__main__":
    main()
