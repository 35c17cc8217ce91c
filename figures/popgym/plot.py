"""Plot popgym.csv and the learning curves, and write tables in Markdown: python -m figures.popgym.plot"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from figures.common.command_line import picture_path
from figures.common.curves import draw_curve
from figures.common.marks import REFERENCE_LINE
from figures.common.paths import FIGURES
from figures.common.provenance import caption
from figures.common.tables import distinct, read_rows
from figures.popgym.cases import CORES, PUBLISHED, SOURCE, TASKS
from figures.popgym.measure import BLOCK_STEPS, SOLVED
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save

TABLE = FIGURES / "popgym" / "popgym.csv"
CURVES = TABLE.with_name("curves")
SHORT = "1000000"
"""Steps of the runs that compare all cores."""
PANELS_PER_ROW = 3
NOTE = (
    "Solid: mean over the seeds (interquartile from 4 on); dashed: --gamma 0; dotted: best published of 13 models, the "
    "maximum over 15 million steps (arXiv 2303.01859)."
)


def best_returns(
    table: list[dict[str, str]], steps: str, variant: str = "preset"
) -> dict[tuple[str, str], list[float]]:
    """Return the column `max_return` of the runs of one length and variant, by task and core, over the seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in table:
        if (row["steps"], row["variant"]) == (steps, variant) and row["max_return"]:
            found.setdefault((row["task"], row["core"]), []).append(float(row["max_return"]))
    return found


def compared_tasks(table: list[dict[str, str]], steps: str) -> list[str]:
    """Return the tasks that several cores were trained on with this number of steps, in the order of TASKS."""
    cores: dict[str, set[str]] = {}
    for row in table:
        if (row["steps"], row["variant"]) == (steps, "preset"):
            cores.setdefault(row["task"], set()).add(row["core"])
    return [task for task in TASKS if len(cores.get(task, ())) > 1]


def returns_table(table: list[dict[str, str]], steps: str) -> str:
    """Return a Markdown table of the runs of one length by core: the returns of all seeds beside the published ones.

    It has the tasks that several cores were trained on.
    """
    returns = best_returns(table, steps)
    cores = [core for core in CORES if any(known == core for _, known in returns)]
    lines = [
        f"Maximum mean episodic return within {int(steps):,} steps, a number per seed. Published: 15 million steps "
        f"({SOURCE}).",
        "",
        f"| task | {' | '.join(cores)} | published GRU | published best |",
        "| --- |" + " --- |" * (len(cores) + 2),
    ]
    for task in compared_tasks(table, steps):
        own = [numbers(returns.get((task, core), [])) for core in cores]
        lines.append("| " + " | ".join([task, *own, *published(task)]) + " |")
    return "\n".join(lines) + "\n"


def runs_table(table: list[dict[str, str]]) -> str:
    """Return a Markdown table of the runs that are not short: a line per task, with the returns and steps by core.

    The last column is the median return over the seeds of the best case minus the best published return.
    """
    rows = [row for row in table if row["steps"] != SHORT and row["max_return"]]
    cores = [core for core in CORES if any(row["core"] == core for row in rows)]
    lines = [
        "Maximum mean episodic return, with the millions of steps of each seed, and the variant if it is not the "
        f"preset. A run ended early when the mean return of 100 episodes was at least {SOLVED} in a whole block of "
        f"{BLOCK_STEPS:,} steps. Published: 15 million steps ({SOURCE}).",
        "",
        f"| task | {' | '.join(cores)} | published GRU | published best | best of ours − published best |",
        "| --- |" + " --- |" * (len(cores) + 3),
    ]
    for task in sorted({row["task"] for row in rows}, key=TASKS.index):
        cells = [
            ", ".join(
                f"{number(float(row['max_return']))} ({float(row['env_steps']) / 1e6:.1f}M"
                + f", `{row['variant']}`" * (row["variant"] != "preset")
                + ")"
                for row in sorted(rows, key=lambda row: (row["variant"] != "preset", row["variant"], row["seed"]))
                if (row["task"], row["core"]) == (task, core)
            )
            for core in cores
        ]
        known = PUBLISHED.get(task)
        difference = number(best_median(rows, task) - known.best) if known else ""
        lines.append("| " + " | ".join([task, *cells, *published(task), difference]) + " |")
    return "\n".join(lines) + "\n"


def best_median(rows: list[dict[str, str]], task: str) -> float:
    """Return the highest median return over the seeds of the cases of a task."""
    cases: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["task"] == task and row["max_return"]:
            case = row["core"], row["variant"], row["steps"]
            cases.setdefault(case, []).append(float(row["max_return"]))
    return max(map(median, cases.values()))


def published(task: str) -> list[str]:
    """Return the published returns of a task as two cells of a table. They are empty if there are none."""
    known = PUBLISHED.get(task)
    return [number(known.gru), f"{number(known.best)} ({known.model})"] if known else ["", ""]


def variants_table(table: list[dict[str, str]]) -> str:
    """Return a Markdown table of the variants of the preset: the return of each seed. It is empty without variants."""
    lines = []
    for steps in sorted({row["steps"] for row in table}, key=int):
        preset = best_returns(table, steps)
        for variant in {row["variant"] for row in table} - {"preset"}:
            for (task, core), values in best_returns(table, steps, variant).items():
                known = preset.get((task, core), [])
                lines.append(f"| {task} | {core} | {int(steps):,} | {variant} | {numbers(values)} | {numbers(known)} |")
    head = "| task | core | steps | variant | return | return of the preset |\n| --- | --- | --- | --- | --- | --- |\n"
    return head + "\n".join(sorted(lines)) + "\n" if lines else ""


def numbers(values: list[float]) -> str:
    """Format the returns of several seeds."""
    return ", ".join(map(number, values))


def number(value: float) -> str:
    """Format a return with three digits and a minus sign."""
    return f"{value:.3f}".replace("-", "−")


def write_tables(table: list[dict[str, str]]) -> None:
    """Write the tables into files, which docs/generate.py includes."""
    found = {
        "returns-short": returns_table(table, SHORT),
        "returns-long": runs_table(table),
        "variants": variants_table(table),
    }
    for name, text in found.items():
        TABLE.with_name(f"{name}.md").write_text(text)


def headline_of(table: list[dict[str, str]]) -> str:
    """Say on how many tasks the best case is not more than 0.01 below the best published return."""
    compared = {row["task"] for row in table if row["max_return"]} & PUBLISHED.keys()
    reached = sum(best_median(table, task) >= PUBLISHED[task].best - 0.01 for task in compared)
    count = f"on {reached} of {len(compared)} tasks"
    return f"The best case is above the best published return, or at most 0.01 below, {count}"


def main() -> None:
    out = picture_path(TABLE.with_suffix(".svg"), __doc__)
    table = read_rows(TABLE)
    if out == TABLE.with_suffix(".svg"):
        write_tables(table)
    rows = [row for row in table if row["variant"] in ("preset", "gamma_0")]
    short = compared_tasks(table, SHORT)
    shown = [row for row in rows if row["steps"] != SHORT or row["task"] in short]
    panels = sorted({(row["steps"] != SHORT, TASKS.index(row["task"])) for row in shown})  # short runs first
    lines = -(-(len(panels) + 1) // PANELS_PER_ROW)  # leaves a panel for the key
    figure, axes = new_figure(lines, PANELS_PER_ROW, height=2.1, headline=headline_of(table))
    keys: dict[str, Any] = {}
    for i, (axis, (long, number_of_task)) in enumerate(zip(axes, panels, strict=False)):
        task = TASKS[number_of_task]
        if task in PUBLISHED:
            axis.axhline(PUBLISHED[task].best, **REFERENCE_LINE)
        here = [row for row in rows if row["task"] == task and (row["steps"] != SHORT) == long]
        cases = {(CORES.index(row["core"]), row["variant"] != "preset", row["steps"]) for row in here}
        for core, dashed, steps in sorted(cases):
            name = f"{task}-{CORES[core]}{'-gamma_0' * dashed}"
            draw_curve(axis, CURVES / steps, name, "return_mean_100", CORES[core], COLORS[core])
            axis.lines[-1].set_linestyle("--" if dashed else "-")
        group_thousands(axis, ticks=3)
        label(axis, "environment steps", "return" if i % PANELS_PER_ROW == 0 else "", task)
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            keys.setdefault(name.split()[0], handle)  # without the number of seeds
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    axes[len(panels)].legend(keys.values(), keys.keys(), loc="center left", fontsize=9)
    save(figure, Path(out), caption(TABLE, NOTE, seeds=distinct(rows, "seed")))


if __name__ == "__main__":
    main()
