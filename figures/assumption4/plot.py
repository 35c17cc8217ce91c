"""Plot assumption4.csv: python -m figures.assumption4.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("assumption4.csv")
TITLES = {
    "same number": "same number of minibatches, of smaller size",
    "same size": "minibatches of the same size, fewer of them",
}


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    policies = list(dict.fromkeys((row["seed"], row["iteration"]) for row in table))
    total = max(int(row["environments"]) for row in table)
    figure, axes = new_figure(1, len(TITLES))
    for axis, (kind, title) in zip(axes, TITLES.items(), strict=True):
        for (seed, iteration), color in zip(policies, COLORS, strict=False):
            rows = [r for r in table if (r["seed"], r["iteration"], r["minibatches"]) == (seed, iteration, kind)]
            counts = sorted({int(row["environments"]) for row in rows})
            # [counts, orders]; the last row is the control with all environments.
            values = np.array([[float(r["kl_to_all"]) for r in rows if int(r["environments"]) == n] for n in counts])
            subsets, medians = counts[:-1], np.median(values, axis=1)
            name = f"seed {seed}, after {iteration} updates"
            axis.plot(subsets, medians[:-1], "o-", color=color, markersize=4, label=name)
            axis.fill_between(subsets, values.min(1)[:-1], values.max(1)[:-1], color=color, alpha=0.15, linewidth=0)
            axis.plot(total, medians[-1], "x", color=color, markersize=5)
            whole_update = np.median([float(row["kl_of_update"]) for row in rows])
            axis.axhline(whole_update, color=color, linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, list(map(str, counts)))
        axis.set_yscale("log")
        label(axis, "environments n of the update", "KL(all ‖ n), nats", title)
        axis.legend(fontsize=6.5, frameon=False)
    note = (
        f"{distinct(table, 'env')} with {total} environments. Lines: KL between the policies after an update on all of "
        "them and on n of them, medians over four orders of the environments. Shaded: range. Dotted: KL of the whole "
        "update from the policy before it. Cross: update on the same data in other minibatches."
    )
    save(figure, out, caption(TABLE, seeds=", ".join(sorted({seed for seed, _ in policies})), note=note))


if __name__ == "__main__":
    main()
