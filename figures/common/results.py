"""Markdown tables of returns over seeds, beside published ones. docs/generate.py includes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from figures.common.tables import read_rows
from shmppo.plotting.curves import bootstrap_interval, interquartile_mean

COLUMNS = {
    "evaluate_return": "mean return of the final policy with its most likely actions",
    "train_return_100": "mean return of the last 100 training episodes",
}
"""Column of a table of runs -> what it is."""
HEADINGS = {
    "train_return_100": "training return",
    "sequential_mean": "sequential KL",
    "reference_start": "reference KL at the start",
    "gamma": "γ_D",
    "monotonic_share": "how often the reference KL falls",
    "learning_rate": "learning rate",
}
"""Column -> its heading, where they differ."""
IQM_SEEDS = 5
"""With fewer seeds, the interquartile mean and its interval say no more than the mean and the range."""


def results_table(
    table: Path,
    command: str,
    keys: Sequence[str],
    column: str,
    *,
    published: Mapping[str, Mapping[str, float]] | None = None,
    means: Sequence[str] = (),
) -> str:
    """Return a Markdown table with a line for each case of a table of runs, and with its commits.

    Args:
        table: the CSV file of `add_run`. Without it, the lines have only the published returns.
        command: that measures it, without `python -m figures.`.
        keys: columns that identify a case. The first one is the task.
        column: one of COLUMNS.
        published: task -> name -> published return. Tasks that it lacks have none.
        means: further columns whose means over the seeds are shown.
    """
    published = published or {}
    names = list(dict.fromkeys(name for returns in published.values() for name in returns))
    rows = read_rows(table)
    cases = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    groups = list(dict.fromkeys(case[:-1] for case in cases))
    cases.sort(key=lambda case: groups.index(case[:-1]))
    missing = [task for task in published if task not in {case[0] for case in cases}]
    steps = [] if "steps" in keys else ["steps"]
    columns = [*keys, *steps, "seeds", "mean ± deviation", "range, or IQM", *means, *names]
    cells = [[HEADINGS.get(name, name) for name in columns], ["---"] * len(columns)]
    for case in cases:
        of_case = [row for row in rows if tuple(row[key] for key in keys) == case]
        values = np.array([float(row[column]) for row in of_case])
        middle, spread = values.mean(), ("", "")
        if len(values) > 1:
            spread = (f" ± {_number(values.std(ddof=1))}", f"{_number(values.min())} to {_number(values.max())}")
        if len(values) >= IQM_SEEDS:
            (middle,), (low,), (high,) = interquartile_mean(values[:, None]), *bootstrap_interval(values[:, None])
            spread = (spread[0], f"IQM {_number(middle)} ({_number(low)} to {_number(high)})")
        cells.append(
            [
                *(f"{int(word):,}" if word.isdecimal() else word for word in case),
                *(f"{int(of_case[0]['env_steps']):,}" for _ in steps),
                str(len(of_case)),
                _number(values.mean()) + spread[0],
                spread[1],
                *(f"{np.mean([float(row[name]) for row in of_case]):.5g}".replace("-", "−") for name in means),
                *(_published(published.get(case[0], {}).get(name), middle) for name in names),
            ]
        )
    for task in missing:
        known = [_number(published[task][name]) for name in names]
        unmeasured = ["not yet"] * (len(columns) - 1 - len(names))
        cells.append([task, *unmeasured, *known])
    episodes = f" ({rows[0]['episodes']} episodes)" if rows and column == "evaluate_return" else ""
    commits = ", ".join(dict.fromkeys(commit for row in rows for commit in row["commit"].split()))
    lines = [
        f"The {COLUMNS[column]}{episodes}: mean ± standard deviation over the seeds, and their range. From {IQM_SEEDS} "
        "seeds on, the interquartile mean (IQM) with its 95 % bootstrap interval replaces the range."
        + (" In brackets behind a published return: how far the mean or the IQM is above it." if published else ""),
        "",
        *("| " + " | ".join(line) + " |" for line in cells),
        "",
        f"*Measured by* `python -m figures.{command}`" + (f" *at commits* {commits}." if commits else " *(not yet).*"),
    ]
    return "\n".join(lines) + "\n"


def _published(value: float | None, own: float) -> str:
    """Format a published return, and how far the own one is above it."""
    return "" if value is None else f"{_number(value)} ({'+' * bool(own >= value)}{_number(own - value)})"


def _number(value: float) -> str:
    """Format a return with at least three significant digits and a minus sign."""
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")
