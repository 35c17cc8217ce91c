"""Plot privileged_critic.csv and the learning curves: python -m figures.privileged_critic.plot"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

NAMES = {
    "privileged": "LSTM, and the critic also sees velocities",
    "unprivileged": "LSTM",
    "lru": "LRU",
    "memoryless": "no memory",
}
TABLE = Path(__file__).with_name("privileged_critic.csv")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    cases = {row["case"] for row in table}
    medians = {case: median(float(row["train_return_100"]) for row in table if row["case"] == case) for case in cases}
    texts = ", ".join(f"{medians[case]:,.0f} ({name})" for case, name in NAMES.items() if case in cases)
    figure, (axis,) = new_figure(1, 1, height=3.4, headline=f"Median return at the end: {texts}")
    for (case, name), color in zip(NAMES.items(), COLORS, strict=False):
        if case in cases:
            draw_curve(axis, TABLE.with_name("curves"), case, "return_mean_100", name, color)
            draw_evaluations(axis, [row for row in table if row["case"] == case], color)
    group_thousands(axis)
    label(axis, "environment steps", "return, last 100 episodes", "HalfCheetah-v5, only positions for the actor")
    axis.legend(loc="upper left")
    save(figure, out, caption(TABLE, NOTE, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
