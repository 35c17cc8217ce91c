"""figures/data/kl_sweeps.csv, kl_sweeps-runs.csv → figures/kl_sweeps.svg

python figures/plot_kl_sweeps.py
"""

from __future__ import annotations

import csv

import numpy as np
from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

TITLES = {"minibatch": "minibatches", "shape": "environments × rollout", "objective": "objective"}


def main() -> None:
    out = output("kl_sweeps", __doc__)
    with open(DATA / "kl_sweeps.csv", newline="") as file:
        points = list(csv.DictReader(file))
    with open(DATA / "kl_sweeps-runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    names_of = {sweep: dict.fromkeys(run["name"] for run in runs if run["sweep"] == sweep) for sweep in TITLES}
    names_of = {sweep: names for sweep, names in names_of.items() if len(names) > 1}
    figure, axes = new_figure(len(names_of), 2)
    for i, (sweep, names) in enumerate(names_of.items()):
        row, title = axes[2 * i : 2 * i + 2], TITLES[sweep]
        for name, color in zip(names, COLOURS, strict=False):
            members = [run for run in runs if (run["sweep"], run["name"]) == (sweep, name)]
            monotonic = np.mean([float(run["monotonic_share"]) for run in members])
            for axis, kind in zip(row, ("sequential", "reference"), strict=True):
                text = name if kind == "sequential" else f"{name}: falls at {monotonic:.0%} of the steps"
                x, mean = profile([p for p in points if (p["sweep"], p["name"]) == (sweep, name)], f"log10_{kind}")
                axis.plot(x, mean, color=color, linewidth=1.4, label=text)
        for axis, kind in zip(row, ("sequential", "reference"), strict=True):
            label(axis, "share of the update's data", "log₁₀ nats", f"{title}: {kind} KL")
            axis.legend(fontsize=6.5, frameon=False)
    seeds = ", ".join(sorted({run["seed"] for run in runs}))
    envs = ", ".join(sorted({run["env"] for run in runs}))
    note = f"{envs}. Means of log₁₀ over recorded updates and seeds; a reduced scale of the paper's grid."
    save(figure, out, caption("kl_sweeps", seeds=seeds, note=note))


def profile(points: list[dict[str, str]], column: str) -> tuple[list[float], list[float]]:
    """Mean of a column over runs, by share of data."""
    shares = sorted({float(point["share"]) for point in points})
    return shares, [float(np.nanmean([float(p[column]) for p in points if float(p["share"]) == x])) for x in shares]


if __name__ == "__main__":
    main()
