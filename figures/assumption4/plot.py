"""Plot assumption4.csv: python -m figures.assumption4.plot"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = Path(__file__).with_name("assumption4.csv")
TITLES = {
    "same number": "Same number of minibatches, of smaller size",
    "same size": "Minibatches of the same size, fewer of them",
}


def distance(table: list[dict[str, str]], environments: int) -> float:
    """Return the median KL between the updates on all environments and on some, with as many optimizer steps."""
    rows = [row for row in table if row["minibatches"] == "same number" and int(row["environments"]) == environments]
    return float(np.median([float(row["kl_to_all"]) for row in rows]))


def draw_policy(axis: Axes, rows: list[dict[str, str]], color: str, name: str) -> None:
    """Draw the KLs for one policy over the number of environments of the update.

    Args:
        axis: the panel.
        rows: rows of the table.
        color: of everything that is drawn.
        name: label in the legend.
    """
    counts = sorted({int(row["environments"]) for row in rows})
    # [counts, orders]; the last row is the control with all environments.
    values = np.array([[float(row["kl_to_all"]) for row in rows if int(row["environments"]) == n] for n in counts])
    medians = np.median(values, axis=1)
    axis.plot(counts[:-1], medians[:-1], "o-", color=color, label=name)
    axis.fill_between(counts[:-1], values.min(1)[:-1], values.max(1)[:-1], color=color, alpha=0.15, linewidth=0)
    axis.plot(counts[-1], medians[-1], "x", color=color, markersize=6, markeredgewidth=1.5)
    axis.axhline(np.median([float(row["kl_of_update"]) for row in rows]), color=color, linewidth=1, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, list(map(str, counts)))
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")  # exponents would be too small to read


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    policies = list(dict.fromkeys((row["seed"], row["iteration"]) for row in table))
    total = max(int(row["environments"]) for row in table)
    update = np.median([float(row["kl_of_update"]) for row in table])
    part = total // 2
    headline = (
        f"An update on {part} of {total} environments is {distance(table, part):.3f} nats from the whole update "
        f"of {update:.3f} nats"
    )
    figure, axes = new_figure(1, len(TITLES), height=3.4, headline=headline, sharey=True)
    for axis, (kind, title) in zip(axes, TITLES.items(), strict=True):
        for (seed, iteration), color in zip(policies, COLORS, strict=False):
            key = (seed, iteration, kind)
            rows = [row for row in table if (row["seed"], row["iteration"], row["minibatches"]) == key]
            draw_policy(axis, rows, color, f"policy after {iteration} updates (seed {seed})")
        label(axis, "environments n of the update", "KL(all ‖ n), nats" if axis is axes[0] else "", title)
    axes[0].legend(loc="lower left")
    note = (
        f"{distinct(table, 'env')}: KL between the updates on all environments and on n of them (median and range over "
        "four orders of the environments); dotted: KL of the whole update; cross: all environments, other minibatches."
    )
    save(figure, out, caption(TABLE, note, seeds=", ".join(sorted({seed for seed, _ in policies}))))


if __name__ == "__main__":
    main()
