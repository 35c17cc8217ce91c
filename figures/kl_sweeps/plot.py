"""Plot kl_sweeps.csv and kl_sweeps-runs.csv: python -m figures.kl_sweeps.plot"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("kl_sweeps.csv")
TITLES = {"minibatch": "minibatches", "shape": "environments × rollout steps", "objective": "objective"}
KINDS = ("sequential", "reference")


def mean_by_share(points: list[dict[str, str]], column: str) -> tuple[list[float], list[float]]:
    """Return the shares of the data, and the mean of a column over the runs at each of them."""
    shares = sorted({float(point["share"]) for point in points})
    return shares, [float(np.nanmean([float(p[column]) for p in points if float(p["share"]) == x])) for x in shares]


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    points, runs = read_rows(TABLE), read_rows(TABLE.with_name("kl_sweeps-runs.csv"))
    sweeps = {sweep: dict.fromkeys(run["name"] for run in runs if run["sweep"] == sweep) for sweep in TITLES}
    sweeps = {sweep: names for sweep, names in sweeps.items() if len(names) > 1}
    figure, axes = new_figure(len(sweeps), len(KINDS))
    for i, (sweep, names) in enumerate(sweeps.items()):
        panels = axes[len(KINDS) * i : len(KINDS) * (i + 1)]
        for name, color in zip(names, COLORS, strict=False):
            members = [run for run in runs if (run["sweep"], run["name"]) == (sweep, name)]
            own_points = [point for point in points if (point["sweep"], point["name"]) == (sweep, name)]
            monotonic = np.mean([float(run["monotonic_share"]) for run in members])
            legend = {"sequential": name, "reference": f"{name}: decreases at {monotonic:.0%} of the steps"}
            for axis, kind in zip(panels, KINDS, strict=True):
                x, mean = mean_by_share(own_points, f"log10_{kind}")
                axis.plot(x, mean, color=color, linewidth=1.4, label=legend[kind])
        for axis, kind in zip(panels, KINDS, strict=True):
            label(axis, "share of the update's data", "log₁₀ nats", f"{TITLES[sweep]}: {kind} KL")
            axis.legend(fontsize=6.5, frameon=False)
    note = (
        f"{distinct(runs, 'env')}. Means of log₁₀ KL over the recorded updates and seeds. The batch is smaller than in "
        "the paper."
    )
    save(figure, out, caption(TABLE, seeds=distinct(runs, "seed"), note=note))


if __name__ == "__main__":
    main()
