"""Plot kl.csv, kl-runs.csv, and subsets.csv: python -m figures.kl.plot"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from figures.common.command_line import picture_path
from figures.common.paths import FIGURES
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = FIGURES / "kl" / "kl.csv"
TITLES = {
    "minibatch": "minibatches (number × steps)",
    "shape": "batches (environments × steps)",
    "objective": "objectives",
}
KINDS = ("sequential", "reference")
SUBSETS = {"same number": "Same number of minibatches", "same size": "Minibatches of the same size"}
Rows = list[dict[str, str]]


def mean_by_share(points: Rows, column: str) -> tuple[list[float], list[float]]:
    """Return the shares of the data, and the mean of a column over the runs at each of them."""
    shares = sorted({float(point["share"]) for point in points})
    return shares, [float(np.nanmean([float(p[column]) for p in points if float(p["share"]) == x])) for x in shares]


def falling_share(runs: Rows, sweep: str, name: str) -> float:
    """Return the share of steps at which the reference KL falls, averaged over the seeds."""
    members = [run for run in runs if (run["sweep"], run["name"]) == (sweep, name)]
    return float(np.mean([float(run["monotonic_share"]) for run in members]))


def short(name: str) -> str:
    """Shorten the name of a run: leave out the units, which the title has, and add thousands separators."""
    name = re.sub(" (?:environments|steps)", "", name)
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", name)


def draw_sweep(panels: Sequence[Axes], sweep: str, points: Rows, runs: Rows) -> None:
    """Draw the two kinds of KL of a sweep over the share of the update's data."""
    names = dict.fromkeys(run["name"] for run in runs if run["sweep"] == sweep)
    for name, color in zip(names, COLORS, strict=False):
        own_points = [point for point in points if (point["sweep"], point["name"]) == (sweep, name)]
        for axis, kind in zip(panels, KINDS, strict=True):
            x, mean = mean_by_share(own_points, f"log10_{kind}")
            axis.plot(x, mean, color=color, label=f"{short(name)}: {100 * falling_share(runs, sweep, name):.0f} %")
    for axis, kind in zip(panels, KINDS, strict=True):
        label(axis, "share of the update's data", "log₁₀ nats", f"{kind.capitalize()} KL of {TITLES[sweep]}")
    # The reference KL falls from the upper left, so this corner is free. The colors hold for both panels.
    panels[-1].legend(loc="lower left", title="falls at … of the steps", alignment="left")


def draw_subsets(axis: Axes, kind: str, table: Rows) -> None:
    """Draw the KL to the update on all environments over the number of environments, for each policy."""
    policies = dict.fromkeys((row["seed"], row["iteration"]) for row in table)
    for (seed, iteration), color in zip(policies, COLORS, strict=False):
        rows = [row for row in table if (row["seed"], row["iteration"], row["minibatches"]) == (seed, iteration, kind)]
        counts = sorted({int(row["environments"]) for row in rows})
        # [counts, orders]; the last row is the control with all environments.
        values = np.array([[float(row["kl_to_all"]) for row in rows if int(row["environments"]) == n] for n in counts])
        medians = np.median(values, axis=1)
        axis.plot(counts[:-1], medians[:-1], "o-", color=color, label=f"after {iteration} updates (seed {seed})")
        axis.fill_between(counts[:-1], values.min(1)[:-1], values.max(1)[:-1], color=color, alpha=0.15, linewidth=0)
        axis.plot(counts[-1], medians[-1], "x", color=color, markersize=6, markeredgewidth=1.5)
        axis.axhline(np.median([float(row["kl_of_update"]) for row in rows]), color=color, linewidth=1, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, list(map(str, counts)))
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")  # exponents would be too small to read
    label(axis, "environments n of the update", "KL(all ‖ n), nats", SUBSETS[kind])


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    points, runs = read_rows(TABLE), read_rows(TABLE.with_name("kl-runs.csv"))
    subsets = read_rows(TABLE.with_name("subsets.csv"))
    sizes = list(dict.fromkeys(run["name"] for run in runs if run["sweep"] == "minibatch"))  # the smallest first
    first, last = (falling_share(runs, "minibatch", sizes[i]) for i in (0, -1))
    headline = (
        f"The reference KL falls at {100 * first:.0f} % of the steps with small minibatches, "
        f"{100 * last:.0f} % with large ones"
    )
    figure, axes = new_figure(len(TITLES) + 1, 2, height=2.5, headline=headline)
    for i, sweep in enumerate(TITLES):
        draw_sweep(axes[2 * i : 2 * i + 2], sweep, points, runs)
    for axis, kind in zip(axes[2 * len(TITLES) :], SUBSETS, strict=True):
        draw_subsets(axis, kind, subsets)
    axes[-1].legend(loc="lower left")
    note = (
        f"{distinct(runs, 'env')}. Above: means of log₁₀ KL over the recorded updates; both panels of a row have the "
        "same colors. Below: KL between the updates on all and on n environments (median and range over four orders); "
        "dotted: KL of the whole update; cross: all environments, other minibatches."
    )
    save(figure, out, caption(TABLE, note, seeds=distinct(runs, "seed")))


if __name__ == "__main__":
    main()
