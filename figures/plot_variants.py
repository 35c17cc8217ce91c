"""figures/data/variants.csv and curves/*.csv → figures/variants.svg

python figures/plot_variants.py
"""

from __future__ import annotations

import csv

from measure_variants import VARIANTS
from provenance import DATA, caption, output

from shmppo.plotting.curves import Run, aggregate, read_columns
from shmppo.plotting.plots import COLOURS, SEEDS_CAPTION, draw_aggregate, label, new_figure, save

COLUMNS = {"return_mean_100": "return, last 100 episodes", "kl": "KL(old ‖ new), nats"}


def main() -> None:
    out = output("variants", __doc__)
    with open(DATA / "variants.csv", newline="") as file:
        table = list(csv.DictReader(file))
    tasks = list(dict.fromkeys(row["task"] for row in table))
    figure, axes = new_figure(len(COLUMNS), len(tasks), width=3.8)
    panels = [(column, task) for column in COLUMNS for task in tasks]
    for axis, (column, task) in zip(axes, panels, strict=True):
        for variant, color in zip(VARIANTS, COLOURS, strict=False):
            files = sorted((DATA / "curves").glob(f"{task}-{variant}-s*.csv"))
            curve = aggregate([Run(file, {}, read_columns(file)) for file in files], column, "env_steps")
            if curve is not None:
                draw_aggregate(axis, curve, variant, color)
            if column == "return_mean_100":
                rows = [row for row in table if (row["task"], row["variant"]) == (task, variant)]
                steps, returns = ([float(row[c]) for row in rows] for c in ("env_steps", "evaluate_return"))
                axis.plot(steps, returns, "o", color=color, markersize=4, fillstyle="none")
        axis.locator_params(axis="x", nbins=4)
        label(axis, "environment steps", COLUMNS[column], task)
        axis.legend(fontsize=7, frameon=False)
    seeds = ", ".join(sorted({row["seed"] for row in table}))
    save(figure, out, caption("variants", seeds=seeds, note=f"{SEEDS_CAPTION} Circles: deterministic evaluation."))


if __name__ == "__main__":
    main()
