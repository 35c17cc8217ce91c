"""Plot subsets.csv: python -m figures.kl.plot"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from figures.common.command_line import picture_path
from figures.common.paths import FIGURES
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = FIGURES / "kl"
TABLE = FOLDER / "subsets.csv"
SUBSETS = {"same number": "Same number of minibatches", "same size": "Minibatches of the same size"}


def draw_subsets(axis: Axes, kind: str, table: list[dict[str, str]]) -> None:
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
    out = picture_path(FOLDER / "kl.svg", __doc__)
    table = read_rows(TABLE)
    half = [row["kl_to_all"] for row in table if (row["minibatches"], row["environments"]) == ("same number", "32")]
    nats = np.median(np.array(half, dtype=float))
    headline = f"An update on half of the environments is {nats:.3f} nats from the update on all of them"
    figure, axes = new_figure(1, 2, height=2.5, headline=headline)
    for axis, kind in zip(axes, SUBSETS, strict=True):
        draw_subsets(axis, kind, table)
    axes[-1].legend(loc="lower left")
    note = (
        f"{distinct(table, 'env')}. KL between the updates on all and on n environments (median and range over four "
        "orders); dotted: KL of the whole update; cross: all environments in another random order."
    )
    save(figure, out, caption(TABLE, note, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
