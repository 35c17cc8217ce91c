"""Plot scaling.csv: python -m figures.scaling.plot"""

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
    rows = read_rows(TABLE)
    best = max((row for row in rows if row["mode"] == "strong"), key=lambda row: float(row["speedup"]))
    headline = f"{best['learning'].capitalize()} learning with {best['workers']} workers is "
    headline += f"{float(best['speedup']):.2f} times as fast as with one"
    plot_scaling(rows, out, headline=headline, caption=caption(TABLE, NOTE))


if __name__ == "__main__":
    main()
