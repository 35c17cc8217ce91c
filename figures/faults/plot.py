"""Plot faults.csv: python -m figures.faults.plot"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("faults.csv")
FAULTS = {
    "KILL": "worker killed",
    "SEGV": "worker gets SIGSEGV",
    "raise": "environment raises",
    "STOP": "worker stopped (timeout 1 s)",
}


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    figure, (axis,) = new_figure(1, 1, width=6.5, height=2.6)
    lost = [
        [float(row["seconds_lost"]) for row in table if row["fault"] == fault and row["seconds_lost"]]
        for fault in FAULTS
    ]
    boxes = axis.boxplot(lost, orientation="horizontal", patch_artist=True, widths=0.6, flierprops={"markersize": 3})
    for box in boxes["boxes"]:
        box.set_facecolor(COLORS[5])
    names = [f"{name} ({len(seconds)} runs)" for name, seconds in zip(FAULTS.values(), lost, strict=True)]
    axis.set_yticks(range(1, len(FAULTS) + 1), names)
    axis.axvline(0, color="#888888", linewidth=0.8, linestyle=":")
    same = sum(row["same_hash"] == "True" for row in table)
    title = f"{same} of {len(table)} disturbed runs ended with unchanged weights"
    label(axis, "additional seconds, compared with the undisturbed run", "", title)
    note = "Boxes: quartiles; whiskers: 1.5 interquartile ranges. Runs that were stopped and resumed are not timed."
    save(figure, out, caption(TABLE, note=note))


if __name__ == "__main__":
    main()
