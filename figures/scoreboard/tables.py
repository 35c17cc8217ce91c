"""Write the tables of the queue in Markdown, which docs/generate.py includes: python -m figures.scoreboard.tables"""

from __future__ import annotations

from pathlib import Path

from figures.agents.measure import TABLE as TEAMS
from figures.batches.environments import TABLE as BATCHES
from figures.common.results import results_table
from figures.distributions.measure import TABLE as DISTRIBUTIONS
from figures.fixed_points.measure import KL_COLUMNS
from figures.fixed_points.measure import TABLE as FIXED_POINTS
from figures.published.measure import FOLDER, PUBLISHED
from figures.teachers.measure import TABLE as TEACHERS


def tables() -> dict[Path, str]:
    """Return the text of each file."""
    found = {
        FIXED_POINTS: results_table(
            FIXED_POINTS, "fixed_points.measure", ["task", "shape", "minibatches", "objective"], "evaluate_return",
            means=["train_return_100", *(name for name in KL_COLUMNS if name != "slope")],
        ),
        BATCHES: results_table(
            BATCHES, "batches.environments", ["task", "environments", "minibatches"], "evaluate_return"
        ),
        DISTRIBUTIONS: results_table(DISTRIBUTIONS, "distributions.measure", ["task", "case"], "evaluate_return"),
        TEACHERS: results_table(TEACHERS, "teachers.measure", ["task", "steps", "case"], "evaluate_return"),
        TEAMS: results_table(TEAMS, "agents.measure teams", ["task", "case"], "evaluate_return"),
    }  # fmt: skip
    for part, published in PUBLISHED.items():
        table = FOLDER / f"{part}.csv"
        keys, command = ["task", "core"], f"published.measure {part}"
        found[table] = results_table(table, command, keys, "evaluate_return", published=published)
    return {table.with_suffix(".md"): text for table, text in found.items()}


def main() -> None:
    for path, text in tables().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
