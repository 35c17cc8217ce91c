"""Plot latency.csv: python -m figures.latency.plot"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.style import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("latency.csv")
TAILS = {"none": "always 10 ms", "exponential": "exponential", "pareto": "heavy tail (Pareto 1.5)"}
TITLES = ("Sampling alone", "Whole iteration (dotted: limit by the cores)")
COLUMNS = ("workers", "collect_seconds", "iteration_seconds", "collect_efficiency", "efficiency")


def finding(table: list[dict[str, str]]) -> str:
    """Compare the sampling efficiency at the most workers between the first and the last kind of step times."""
    most = max(int(row["workers"]) for row in table)
    efficiency = {row["tail"]: float(row["collect_efficiency"]) for row in table if int(row["workers"]) == most}
    return (
        f"{most} workers sample with efficiency {efficiency['none']:.2f} at equal step times, "
        f"{efficiency['pareto']:.2f} with a heavy tail"
    )


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    cores = json.loads(TABLE.with_suffix(".json").read_text())["cores"]
    figure, axes = new_figure(1, 2, height=3.1, headline=finding(table), sharey=True)
    for (tail, name), color in zip(TAILS.items(), COLORS, strict=False):
        rows = [row for row in table if row["tail"] == tail]
        workers, collect, iteration, sampling_efficiency, efficiency = (
            np.array([float(row[column]) for row in rows]) for column in COLUMNS
        )
        axes[0].plot(workers, sampling_efficiency, "o-", color=color, label=name)
        axes[1].plot(workers, efficiency, "o-", color=color)
        # Sleeping workers do not need a core. Learning is W times the work of one worker, on a limited number of cores.
        learning = (iteration[0] - collect[0]) * workers / np.minimum(workers, cores)
        axes[1].plot(workers, iteration[0] / (collect[0] + learning), ":", color=color, linewidth=1)
    for axis, title in zip(axes, TITLES, strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(workers, [f"{count:.0f}" for count in workers])
        axis.set_ylim(0, 1.1)
        label(axis, "workers, one environment each", "efficiency" if axis is axes[0] else "", title)
    axes[0].legend(loc="lower left")
    note = "Efficiency over the number of workers; each environment step sleeps 10 ms on average."
    save(figure, out, caption(TABLE, note))


if __name__ == "__main__":
    main()
