"""figures/data/scaling.csv, scaling-curves.csv → figures/scaling.svg

python figures/plot_scaling.py
"""

from __future__ import annotations

import csv

from provenance import DATA, caption, output

from shmppo.plotting.scaling import plot_scaling


def main() -> None:
    out = output("scaling", __doc__)
    with open(DATA / "scaling.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    curves = []
    if (DATA / "scaling-curves.csv").exists():
        with open(DATA / "scaling-curves.csv", newline="") as file:
            curves = list(csv.DictReader(file))
    plot_scaling(rows, curves, out, caption("scaling"))


if __name__ == "__main__":
    main()
