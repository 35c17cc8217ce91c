"""Plot the returns and the KL profiles: python -m figures.fixed_points.plot"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from figures.common.command_line import picture_path
from figures.common.curves import draw_curve
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from figures.fixed_points.measure import CASES, COMPARED, RETURN, TABLE
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "Left: return of 10 episodes, as interquartile mean over the seeds with its 95 % bootstrap interval. Right: mean "
    "log₁₀ KL over the seeds in three recorded updates, from the first (pale) to the last; solid: reference KL, "
    "dotted: sequential KL."
)
STUDIES = {
    "minibatches": [case for case in CASES if case[0] == "500x100" and case[2] == "clip"],
    "shapes": [case for case in CASES if case[1] == "500x100" and case[2] == "clip"],
}


def draw_profiles(axis: Axes, task: str, steps: str) -> None:
    """Draw the profiles of the two settings that the paper compares, as means over the seeds."""
    for minibatches, color in zip(COMPARED, COLORS, strict=False):
        files = (TABLE.parent / "profiles").glob(f"{task}-500x100-{minibatches}-clip-{steps}-s*.csv")
        points = [row for file in files for row in read_rows(file)]
        updates = sorted({int(row["iteration"]) for row in points})
        shown = [*updates[:1], *updates[len(updates) // 2 : -1][:1], *updates[-1:]]
        for update, alpha in zip(shown, (0.3, 0.6, 1.0), strict=False):
            rows = [row for row in points if int(row["iteration"]) == update]
            shares = sorted({float(row["share"]) for row in rows})
            for kind, line in {"reference": "-", "sequential": ":"}.items():
                values = [
                    np.mean([float(row[f"log10_{kind}"]) for row in rows if float(row["share"]) == x]) for x in shares
                ]
                axis.plot(shares, values, line, color=color, alpha=alpha)
        axis.plot([], [], color=color, label=minibatches.replace("x", " × "))
    axis.legend(loc="center left")


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    steps, folder = table[0]["steps"], TABLE.parent / "evaluations"
    tasks = list(dict.fromkeys(row["task"] for row in table))
    headline = f"Minibatches and shapes of batches of 50,000 steps: {distinct(table, 'task')}"
    figure, axes = new_figure(len(tasks), len(STUDIES) + 1, height=3.0, headline=headline)
    for i, task in enumerate(tasks):
        row = axes[3 * i : 3 * i + 3]
        for axis, (title, cases) in zip(row, STUDIES.items(), strict=False):
            for case, color in zip(cases, COLORS, strict=False):
                name = case[1] if title == "minibatches" else case[0]
                files = "-".join([task, *case, steps])
                draw_curve(axis, folder, files, RETURN, name.replace("x", " × "), color)
            group_thousands(axis, ticks=3)
            label(axis, "environment steps", "return", f"{task}: {title}")
            if i == 0:
                axis.legend(loc="upper left")
        draw_profiles(row[2], task, steps)
        label(row[2], "share of the update's data", "log₁₀ nats", f"{task}: KL")
    save(figure, out, caption(TABLE, NOTE, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
