"""Plot peers.csv: python -m figures.peers.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.marks import NEUTRAL, write_values
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

TABLE = Path(__file__).with_name("peers.csv")
TITLES = {"A": "Task A: HalfCheetah-v5", "A-envpool": "Task A with EnvPool", "B": "Task B: CartPole-v1"}
OURS = "shmppo"
TWO_WORKERS = "shmppo, 2 workers"


def speedups(table: list[dict[str, str]]) -> list[float]:
    """Return, for each row of another trainer, how many times as fast shmppo with two workers is on its task."""
    rates = {(row["task"], row["trainer"]): float(row["steps_per_second"]) for row in table}
    return [rates[task, TWO_WORKERS] / rate for (task, name), rate in rates.items() if not name.startswith(OURS)]


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    titles = {task: title for task, title in TITLES.items() if any(row["task"] == task for row in table)}
    # All panels have the trainers in the order of the first panel, the fastest at the top.
    order = sorted(table, key=lambda row: (list(titles).index(row["task"]), -float(row["steps_per_second"])))
    trainers = list(dict.fromkeys(row["trainer"] for row in order))
    ratios = speedups(table)
    headline = f"shmppo with 2 workers is {min(ratios):.1f} to {max(ratios):.1f} times as fast as other trainers"
    figure, axes = new_figure(1, len(titles), height=3.8, headline=headline, sharey=True)
    for axis, (task, title) in zip(axes, titles.items(), strict=True):
        rows = [row for row in table if row["task"] == task]
        places = [trainers.index(row["trainer"]) for row in rows]
        rates, lows, highs = ([float(row[c]) for row in rows] for c in ("steps_per_second", "lowest", "highest"))
        spread = np.abs(np.array([lows, highs]) - rates)
        colors = [COLORS[0] if row["trainer"].startswith(OURS) else NEUTRAL for row in rows]
        axis.barh(places, rates, xerr=spread, color=colors, error_kw={"linewidth": 1.0, "capsize": 2.5})
        write_values(axis, places, highs, [f"{rate:,.0f}" for rate in rates])
        axis.set_xlim(0, 1.4 * max(highs))
        label(axis, "steps per second", "", title)
        group_thousands(axis, "x", ticks=4)
        axis.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(trainers)), [name.replace(" (", "\n(") for name in trainers])
    axes[0].invert_yaxis()
    runs = distinct(table, "repetitions")
    note = f"Medians of {runs} interleaved runs, end to end; whiskers: their range; blank: not measured."
    save(figure, out, caption(TABLE, note))


if __name__ == "__main__":
    main()
