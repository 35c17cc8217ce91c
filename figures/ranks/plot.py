"""Plot ranks.csv: python -m figures.ranks.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.marks import write_values
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.style import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("ranks.csv")
PARTS = ("sampling", "optimization", "communication", "other")
NAMES = {
    "one process": "one process",
    "separate runs": "two separate runs\n(two iterations)",
    "central": "central learning",
    "sharded": "sharded learning",
    "decentralized": "decentralized learning",
}


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    speedup = {row["topology"]: float(row["speedup"]) for row in table}
    headline = f"Sharded learning with two workers is {speedup['sharded']:.2f} times as fast as one process"
    figure, (axis,) = new_figure(1, 1, height=3.1, headline=headline)
    places = range(len(table))
    left = np.zeros(len(table))
    for part, color in zip(PARTS, COLORS, strict=False):
        milliseconds = np.array([1e3 * float(row[f"{part}_seconds"]) for row in table])
        axis.barh(places, milliseconds, left=left, color=color, label=part, height=0.7)
        left += milliseconds
    write_values(axis, places, left, [f"{speedup[row['topology']]:.2f} × one process" for row in table])
    axis.set_yticks(places, [NAMES[row["topology"]] for row in table])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.4 * left.max())
    axis.grid(visible=False, axis="y")
    axis.legend(loc="lower right")
    label(axis, "milliseconds per iteration", "", "Task A (HalfCheetah-v5), the same total batch for all")
    note = "Time of an iteration by part; the two separate runs finish two iterations in the time shown."
    save(figure, out, caption(TABLE, note))


if __name__ == "__main__":
    main()
