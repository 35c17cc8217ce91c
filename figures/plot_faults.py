"""figures/data/faults.csv → figures/faults.svg

python figures/plot_faults.py
"""

from __future__ import annotations

import csv

from provenance import DATA, caption, output

from shmppo.plotting.plots import COLOURS, label, new_figure, save

FAULTS = {
    "KILL": "worker killed",
    "SEGV": "worker faults",
    "raise": "environment raises",
    "STOP": "worker stopped, 1 s timeout",
}


def main() -> None:
    out = output("faults", __doc__)
    with open(DATA / "faults.csv", newline="") as file:
        table = list(csv.DictReader(file))
    same = sum(row["same_hash"] == "True" for row in table)
    figure, axes = new_figure(1, 1, width=6.5, height=2.6)
    lost = [
        [float(row["seconds_lost"]) for row in table if row["fault"] == fault and row["seconds_lost"]]
        for fault in FAULTS
    ]
    boxes = axes[0].boxplot(lost, orientation="horizontal", patch_artist=True, widths=0.6, flierprops={"markersize": 3})
    for box in boxes["boxes"]:
        box.set_facecolor(COLOURS[5])
    counts = [len(seconds) for seconds in lost]
    axes[0].set_yticks(range(1, len(FAULTS) + 1), [f"{n} ({c})" for n, c in zip(FAULTS.values(), counts, strict=True)])
    axes[0].axvline(0, color="#888888", linewidth=0.8, linestyle=":")
    title = f"{same} of {len(table)} disturbed runs ended with the undisturbed run's weights"
    label(axes[0], "seconds that a run took longer than the undisturbed one", "", title)
    note = "Box: quartiles, whiskers 1.5 of their distance; runs that were stopped and resumed are not timed."
    save(figure, out, caption("faults", note=note))


if __name__ == "__main__":
    main()
