"""figures/data/topologies.csv → figures/topologies.svg

python figures/plot_topologies.py
"""

from __future__ import annotations

import csv

import numpy as np
from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

PARTS = ("sampling", "optimization", "communication", "other")


def main() -> None:
    out = output("topologies", __doc__)
    with open(DATA / "topologies.csv", newline="") as file:
        table = list(csv.DictReader(file))
    figure, axes = new_figure(1, 1, width=6.5, height=2.8)
    names = [f"{row['topology']}\n{float(row['speedup']):.2f} ×" for row in table]
    left = np.zeros(len(table))
    for part, color in zip(PARTS, COLOURS, strict=False):
        milliseconds = np.array([1e3 * float(row[f"{part}_seconds"]) for row in table])
        axes[0].barh(names, milliseconds, left=left, color=color, label=part)
        left += milliseconds
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=7, frameon=False, loc="lower right")
    label(axes[0], "milliseconds an iteration", "", "One total batch on two cores: where the time goes")
    save(
        figure,
        out,
        caption("topologies", note="Speed-up over one process; two separate runs make two iterations in that time."),
    )


if __name__ == "__main__":
    main()
