"""Plot variants.csv and the learning curves: python -m figures.variants.plot"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from figures.variants.measure import VARIANTS
from shmppo.plotting.plots import COLORS, label, new_figure, save

TABLE = Path(__file__).with_name("variants.csv")
CURVES = TABLE.with_name("curves")
COLUMNS = {"return_mean_100": "return, last 100 episodes", "approx_kl": "KL(old ‖ new), nats"}


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    tasks = list(dict.fromkeys(row["task"] for row in table))
    figure, axes = new_figure(len(COLUMNS), len(tasks), width=3.8)
    panels = [(column, task) for column in COLUMNS for task in tasks]
    for axis, (column, task) in zip(axes, panels, strict=True):
        for variant, color in zip(VARIANTS, COLORS, strict=False):
            draw_curve(axis, CURVES, f"{task}-{variant}", column, variant, color)
            if column == "return_mean_100":
                rows = [row for row in table if (row["task"], row["variant"]) == (task, variant)]
                draw_evaluations(axis, rows, color)
        axis.locator_params(axis="x", nbins=4)
        label(axis, "environment steps", COLUMNS[column], task)
        axis.legend(fontsize=7, frameon=False)
    save(figure, out, caption(TABLE, seeds=distinct(table, "seed"), note=NOTE))


if __name__ == "__main__":
    main()
