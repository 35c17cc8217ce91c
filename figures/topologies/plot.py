"""Plot topologies.csv: python -m figures.topologies.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("topologies.csv")
PARTS = ("sampling", "optimization", "communication", "other")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    figure, (axis,) = new_figure(1, 1, width=6.5, height=2.8)
    names = [f"{row['topology']}\n{float(row['speedup']):.2f} ×" for row in table]
    left = np.zeros(len(table))
    for part, color in zip(PARTS, COLORS, strict=False):
        milliseconds = np.array([1e3 * float(row[f"{part}_seconds"]) for row in table])
        axis.barh(names, milliseconds, left=left, color=color, label=part)
        left += milliseconds
    axis.invert_yaxis()
    axis.legend(fontsize=7, frameon=False, loc="lower right")
    label(axis, "milliseconds per iteration", "", "Time of an iteration by topology, same total batch, two cores")
    note = "Below each name: speed-up over one process. The two separate runs finish two iterations in the time shown."
    save(figure, out, caption(TABLE, note=note))


if __name__ == "__main__":
    main()
