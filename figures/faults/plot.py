"""Plot faults.csv: python -m figures.faults.plot"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import picture_path
from figures.common.provenance import caption
from figures.common.tables import read_rows
from shmppo.plotting.style import COLORS, REFERENCE_LINE, label, new_figure, save

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
    same = sum(row["same_hash"] == "True" for row in table)
    headline = f"{same} of {len(table)} disturbed runs ended with the weights of the undisturbed run"
    figure, (axis,) = new_figure(1, 1, height=2.9, headline=headline)
    lost = [
        [float(row["seconds_lost"]) for row in table if row["fault"] == fault and row["seconds_lost"]]
        for fault in FAULTS
    ]
    boxes = axis.boxplot(
        lost, orientation="horizontal", patch_artist=True, widths=0.55, flierprops={"markersize": 3.5},
        medianprops={"color": "#000000", "linewidth": 1.6},
    )  # fmt: skip
    for box in boxes["boxes"]:
        box.set_facecolor(COLORS[5])
    names = [f"{name}\n({len(seconds)} runs)" for name, seconds in zip(FAULTS.values(), lost, strict=True)]
    axis.set_yticks(range(1, len(FAULTS) + 1), names)
    axis.axvline(0, **REFERENCE_LINE)
    axis.grid(visible=False, axis="y")
    label(axis, "additional seconds", "", "Time that a fault costs, compared with the undisturbed run")
    note = (
        "Boxes: quartiles, with whiskers of 1.5 interquartile ranges; runs that were stopped and resumed are not timed."
    )
    save(figure, out, caption(TABLE, note))


if __name__ == "__main__":
    main()
