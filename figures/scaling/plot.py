"""Plot scaling.csv and scaling-curves.csv: python -m figures.scaling.plot"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.scaling import plot_scaling

TABLE = Path(__file__).with_name("scaling.csv")
NOTE = "Task A; strong: the same total batch for every number of workers W; weak: the same batch per worker."


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    curves = read_rows(TABLE.with_name("scaling-curves.csv"))
    plot_scaling(read_rows(TABLE), curves, out, caption(TABLE, NOTE))


if __name__ == "__main__":
    main()
