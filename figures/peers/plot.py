"""Plot peers.csv: python -m figures.peers.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("peers.csv")
TITLES = {
    "A": "task A: HalfCheetah-v5, 16 environments",
    "A-envpool": "task A, all trainers with EnvPool",
    "B": "task B: CartPole-v1, 64 environments",
}


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    titles = {task: title for task, title in TITLES.items() if any(row["task"] == task for row in table)}
    figure, axes = new_figure(1, len(titles), width=5.2, height=3.0)
    for axis, (task, title) in zip(axes, titles.items(), strict=True):
        rows = sorted((row for row in table if row["task"] == task), key=lambda row: float(row["steps_per_second"]))
        rates, lows, highs = ([float(row[c]) for row in rows] for c in ("steps_per_second", "lowest", "highest"))
        spread = np.abs(np.array([lows, highs]) - rates)
        colors = [COLORS[0] if row["trainer"].startswith("shmppo") else COLORS[-1] for row in rows]
        names = [row["trainer"] for row in rows]
        axis.barh(names, rates, xerr=spread, color=colors, error_kw={"linewidth": 0.8, "capsize": 2})
        for i, (rate, high) in enumerate(zip(rates, highs, strict=True)):
            axis.text(high, i, f"  {rate:,.0f}", va="center", fontsize=7)
        axis.set_xlim(0, 1.15 * max(highs))
        label(axis, "environment steps per second, end to end", "", title)
    note = f"Medians of {distinct(table, 'repetitions')} interleaved runs; whiskers: their range."
    save(figure, out, caption(TABLE, note=note))


if __name__ == "__main__":
    main()
