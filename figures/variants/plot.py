"""Plot variants.csv and the learning curves: python -m figures.variants.plot"""

from __future__ import annotations

from pathlib import Path

from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from figures.variants.measure import VARIANTS
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

TABLE = Path(__file__).with_name("variants.csv")
CURVES = TABLE.with_name("curves")
COLUMNS = {"return_mean_100": "return, last 100 episodes", "approx_kl": "KL(old ‖ new), nats"}


def leader(table: list[dict[str, str]], task: str) -> str | None:
    """Return the objective whose lowest return over the seeds is above every return of the others, if there is one."""
    returns: dict[str, list[float]] = {}
    for row in table:
        if row["task"] == task:
            returns.setdefault(row["variant"], []).append(float(row["train_return_100"]))
    for variant, values in returns.items():
        if all(min(values) > max(others) for name, others in returns.items() if name != variant):
            return variant
    return None


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    tasks = list(dict.fromkeys(row["task"] for row in table))
    leaders = ", ".join(f"{leader(table, task) or 'none'} on {task.split('-')[0]}" for task in tasks)
    headline = f"Best objective with every seed: {leaders}"
    figure, axes = new_figure(len(COLUMNS), len(tasks), height=2.5, headline=headline)
    panels = [(column, task) for column in COLUMNS for task in tasks]
    for axis, (column, task) in zip(axes, panels, strict=True):
        for variant, color in zip(VARIANTS, COLORS, strict=False):
            draw_curve(axis, CURVES, f"{task}-{variant}", column, variant, color)
            if column == "return_mean_100":
                rows = [row for row in table if (row["task"], row["variant"]) == (task, variant)]
                draw_evaluations(axis, rows, color)
        group_thousands(axis)
        label(axis, "environment steps", COLUMNS[column], task)
    axes[0].legend(loc="upper left")
    save(figure, out, caption(TABLE, NOTE, seeds=distinct(table, "seed")))


if __name__ == "__main__":
    main()
