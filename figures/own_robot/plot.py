"""Plot own_robot.csv and the learning curves: python -m figures.own_robot.plot"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import picture_path
from figures.common.curves import draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

NAMES = {
    "teacher": "no memory, sees velocities, mass, and strength",
    "memory": "LSTM, sees positions",
    "memoryless": "no memory, sees positions",
}
TABLE = Path(__file__).with_name("own_robot.csv")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    rates = {case: [float(row["success"]) for row in table if row["case"] == case] for case in NAMES}
    texts = ", ".join(f"{min(rates[case]):.2f} to {max(rates[case]):.2f} ({case})" for case in NAMES)
    figure, (axis,) = new_figure(1, 1, height=3.4, headline=f"Success in 100 episodes at the end: {texts}")
    for (case, name), color in zip(NAMES.items(), COLORS, strict=False):
        draw_curve(axis, TABLE.with_name("curves"), case, "info/is_success", name, color)
        draw_evaluations(axis, [row for row in table if row["case"] == case], color, "success")
    group_thousands(axis)
    label(axis, "environment steps", "success, last 100 episodes", "An arm holds a payload of unknown mass at a target")
    axis.legend(loc="center right")
    note = "Line: mean over the seeds with its 95 % bootstrap interval; circles: success of the final policy."
    save(figure, out, caption(TABLE, note, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
