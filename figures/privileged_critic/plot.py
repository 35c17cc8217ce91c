"""Plot privileged_critic.csv and the learning curves: python -m figures.privileged_critic.plot"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from figures.privileged_critic.measure import CRITICS
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

TABLE = Path(__file__).with_name("privileged_critic.csv")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    medians = {c: median(float(row["train_return_100"]) for row in table if row["critic"] == c) for c in CRITICS}
    texts = ", ".join(f"{value:,.0f} with {critic}" for critic, value in medians.items())
    figure, (axis,) = new_figure(
        1, 1, height=3.0, headline=f"Median return at the end by what the critic sees: {texts}"
    )
    for critic, color in zip(CRITICS, COLORS, strict=False):
        draw_curve(axis, TABLE.with_name("curves"), critic, "return_mean_100", critic, color)
        draw_evaluations(axis, [row for row in table if row["critic"] == critic], color)
    group_thousands(axis)
    label(axis, "environment steps", "return, last 100 episodes", "HalfCheetah-v5, positions for the actor")
    axis.legend(loc="upper left", title="the critic sees")
    save(figure, out, caption(TABLE, NOTE, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
