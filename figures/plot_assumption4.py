"""figures/data/assumption4.csv → figures/assumption4.svg

python figures/plot_assumption4.py
"""

from __future__ import annotations

import csv

import numpy as np
from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

TITLES = {"same number": "as many minibatches, smaller", "same size": "minibatches of one size, fewer"}


def main() -> None:
    out = output("assumption4", __doc__)
    with open(DATA / "assumption4.csv", newline="") as file:
        table = list(csv.DictReader(file))
    policies = list(dict.fromkeys((row["seed"], row["iteration"]) for row in table))
    everything = max(int(row["environments"]) for row in table)
    figure, axes = new_figure(1, len(TITLES))
    for axis, (kind, title) in zip(axes, TITLES.items(), strict=True):
        for (seed, iteration), color in zip(policies, COLOURS, strict=False):
            rows = [r for r in table if (r["seed"], r["iteration"], r["minibatches"]) == (seed, iteration, kind)]
            counts = sorted({int(row["environments"]) for row in rows})
            values = np.array([[float(r["kl_to_all"]) for r in rows if int(r["environments"]) == n] for n in counts])
            medians = np.median(values, axis=1)
            part = [n < everything for n in counts]
            name = f"seed {seed}, after {iteration} updates"
            axis.plot(np.array(counts)[part], medians[part], "o-", color=color, markersize=4, label=name)
            axis.fill_between(counts[:-1], values.min(1)[:-1], values.max(1)[:-1], color=color, alpha=0.15, linewidth=0)
            axis.plot(everything, medians[-1], "x", color=color, markersize=5)
            moved = np.median([float(row["kl_of_update"]) for row in rows])
            axis.axhline(moved, color=color, linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, list(map(str, counts)))
        axis.set_yscale("log")
        label(axis, "environments n of the update", "KL(π of all ‖ π of n), nats", title)
        axis.legend(fontsize=6.5, frameon=False)
    envs = ", ".join(sorted({row["env"] for row in table}))
    note = (
        f"{envs}, {everything} environments in all. Medians of four nested orders, shaded their range. Dotted: KL of "
        "the whole update from the policy before. Cross: the same data in other minibatches."
    )
    save(figure, out, caption("assumption4", seeds=", ".join(sorted({s for s, _ in policies})), note=note))


if __name__ == "__main__":
    main()
