"""Plot kl_sweeps.csv and kl_sweeps-runs.csv: python -m figures.kl_sweeps.plot"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("kl_sweeps.csv")
TITLES = {
    "minibatch": "minibatches (number × steps)",
    "shape": "batches (environments × steps)",
    "objective": "objectives",
}
KINDS = ("sequential", "reference")


def mean_by_share(points: list[dict[str, str]], column: str) -> tuple[list[float], list[float]]:
    """Return the shares of the data, and the mean of a column over the runs at each of them."""
    shares = sorted({float(point["share"]) for point in points})
    return shares, [float(np.nanmean([float(p[column]) for p in points if float(p["share"]) == x])) for x in shares]


def falling_share(runs: list[dict[str, str]], sweep: str, name: str) -> float:
    """Return the share of steps at which the reference KL falls, averaged over the seeds."""
    members = [run for run in runs if (run["sweep"], run["name"]) == (sweep, name)]
    return float(np.mean([float(run["monotonic_share"]) for run in members]))


def short(name: str) -> str:
    """Shorten the name of a run: leave out the units, which the title has, and add thousands separators."""
    name = re.sub(" (?:environments|steps)", "", name)
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", name)


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    points, runs = read_rows(TABLE), read_rows(TABLE.with_name("kl_sweeps-runs.csv"))
    sweeps = {sweep: list(dict.fromkeys(run["name"] for run in runs if run["sweep"] == sweep)) for sweep in TITLES}
    sweeps = {sweep: names for sweep, names in sweeps.items() if len(names) > 1}
    shares = {(sweep, name): falling_share(runs, sweep, name) for sweep, names in sweeps.items() for name in names}
    # The sweep begins with the smallest minibatches.
    first, last = (shares["minibatch", sweeps["minibatch"][i]] for i in (0, -1))
    headline = (
        f"The reference KL falls at {100 * first:.0f} % of the steps with small minibatches, "
        f"{100 * last:.0f} % with large ones"
    )
    figure, axes = new_figure(len(sweeps), len(KINDS), height=2.5, headline=headline)
    for i, (sweep, names) in enumerate(sweeps.items()):
        panels = axes[len(KINDS) * i : len(KINDS) * (i + 1)]
        for name, color in zip(names, COLORS, strict=False):
            own_points = [point for point in points if (point["sweep"], point["name"]) == (sweep, name)]
            for axis, kind in zip(panels, KINDS, strict=True):
                x, mean = mean_by_share(own_points, f"log10_{kind}")
                axis.plot(x, mean, color=color, label=f"{short(name)}: {100 * shares[sweep, name]:.0f} %")
        for axis, kind in zip(panels, KINDS, strict=True):
            label(axis, "share of the update's data", "log₁₀ nats", f"{kind.capitalize()} KL of {TITLES[sweep]}")
        # The reference KL falls from the upper left, so this corner is free. The colors hold for both panels.
        panels[-1].legend(loc="lower left", title="falls at … of the steps", alignment="left")
    note = (
        f"Means of log₁₀ KL over the recorded updates and seeds on {distinct(runs, 'env')}; both panels of a row have "
        "the same colors."
    )
    save(figure, out, caption(TABLE, note, seeds=distinct(runs, "seed")))


if __name__ == "__main__":
    main()
