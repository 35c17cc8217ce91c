"""The figures of `python -m shmppo.plot RUN_DIR…`. They are drawn from metrics.csv and eval.csv.

The labels come from config.json.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shmppo.config.checks import nearest, require
from shmppo.loggers.metrics import ADDED_GLOSSARY, EVALUATION_GLOSSARY, GLOSSARY
from shmppo.plotting.comparison import mean_over_seeds, outcomes, with_seeds
from shmppo.plotting.curves import Aggregate, Groups, Run, aggregate
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure
from shmppo.utils.phase_timer import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXIS_LABELS = {
    "env_steps": "environment steps",
    "wall_seconds": "training time (s)",
    "return_mean_100": "return, last 100 episodes",
    "eval/return": "return of evaluated episodes",
    "approx_kl": "KL(old ‖ new), nats",
    "clip_fraction": "clip fraction",
}
"""Labels of axes. Other columns are labeled with their names."""
LEGEND_CHARACTERS, TITLE_CHARACTERS = 110, 100
"""Characters in a line of the legend, and in the title of a panel, which has two lines."""
X_COLUMNS = {"steps": "env_steps", "seconds": "wall_seconds"}
"""Columns of the x axis, by the value of --x."""


def caption_of(groups: Groups) -> str:
    """Say what the lines of several seeds are. Empty if no group has several."""
    mean = mean_over_seeds(groups)
    return f"Thick: {mean} of the seeds. Thin: each seed. Shaded: 95 % bootstrap interval." if mean else ""


def draw_aggregate(axis: Axes, curve: Aggregate, name: str, color: str, width: float = 1.4) -> None:
    """Draw the mean over the runs with its 95 % interval."""
    axis.plot(curve.x, curve.mean, color=color, linewidth=width, label=with_seeds(name, len(curve.values)))
    if len(curve.values) > 1:
        axis.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)


def draw_phases(axis: Axes, members: Sequence[Run], title: str) -> None:
    """Draw the share of each phase in the time of an iteration, over the first run, as means over 50 equal parts."""
    run, of = members[0], "the first seed of " if len(members) > 1 else ""
    zeros = np.zeros(len(run.columns["iteration"]))
    seconds = np.stack([run.columns.get(f"{phase}_seconds", zeros) for phase in PHASES])  # earlier versions had fewer
    shares = seconds / seconds.sum(axis=0)
    parts = np.array_split(np.arange(shares.shape[1]), min(50, shares.shape[1]))
    means = np.stack([shares[:, part].mean(axis=1) for part in parts], axis=1)  # [phases, parts]
    iterations = [run.columns["iteration"][part].mean() for part in parts]
    axis.stackplot(iterations, 100 * means, colors=COLORS, labels=PHASES)
    axis.set_ylim(0, 100)
    text = textwrap.fill(
        textwrap.shorten(f"time of {of}{title}", TITLE_CHARACTERS, placeholder=" …"), TITLE_CHARACTERS // 2
    )
    label(axis, "iteration", "share of time (%)", text)


def add_legend(figure: Figure, axis: Axes) -> None:
    """Add the legend of a panel to the figure, above all panels, where it hides no curve.

    The figure grows by the height of the legend, so that the panels keep their size.
    """
    handles, names = axis.get_legend_handles_labels()
    columns = max(1, min(len(names), 100 // (8 + max(map(len, names), default=0))))
    texts = [textwrap.fill(name, LEGEND_CHARACTERS) for name in names]
    legend = figure.legend(handles, texts, loc="outside upper left", ncols=columns)
    figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def draw_groups(axis: Axes, groups: Groups, column: str, over: str) -> None:
    """Draw one curve per group of runs, and its runs as thin lines. A panel without a curve says so.

    Args:
        axis: the panel.
        groups: the runs.
        column: name of the column to draw.
        over: name of the column of the x axis.
    """
    curves = [aggregate(members, column, over) for members in groups.values()]
    for i, (name, curve) in enumerate(zip(groups, curves, strict=True)):
        color = COLORS[i % len(COLORS)]
        if curve is None:
            axis.plot([], [], color=color, label=name)  # the legend has all groups
        else:
            # Earlier curves are wider, so that equal curves on top of each other stay visible.
            draw_aggregate(axis, curve, name, color, 1.4 + 1.2 * min(len(groups) - 1 - i, 3))
            axis.plot(curve.x, curve.values.T, color=color, linewidth=0.5, alpha=0.6)
    if not any(curves):
        axis.text(0.5, 0.5, "no values yet", transform=axis.transAxes, horizontalalignment="center")
    group_thousands(axis)
    label(axis, AXIS_LABELS[over], AXIS_LABELS.get(column, column))


def draw_metrics(groups: Groups, metrics: Sequence[str], over: str) -> Figure:
    """Draw one panel per metric.

    Raises:
        ConfigError: if a metric is unknown, or if a run has no curve of it.
    """
    for metric in metrics:
        check_metric(groups, metric, over)
    figure, axes = new_figure(-(-len(metrics) // 2), min(len(metrics), 2), height=3.0)
    for axis, metric in zip(axes, metrics, strict=False):
        draw_groups(axis, groups, metric, over)
    add_legend(figure, axes[0])
    for axis in axes[len(metrics) :]:
        axis.set_axis_off()
    return figure


def check_metric(groups: Groups, metric: str, over: str) -> None:
    """Check that a metric can be drawn for all runs. Raises ConfigError otherwise."""
    runs = [run for members in groups.values() for run in members]
    known = {*GLOSSARY, *ADDED_GLOSSARY, *EVALUATION_GLOSSARY}.union(
        *(run.columns.keys() | run.evaluations.keys() for run in runs)
    )
    require(
        metric in known,
        f"--metric {metric} is not a metric{nearest(metric, known)}; the metrics are the columns of "
        f"{runs[0].directory / 'metrics.csv'} and eval.csv",
    )
    without = ", ".join(str(run.directory) for run in runs if run.curve(metric, over) is None)
    require(not without, f"--metric {metric}: {without} has fewer than two values; name another metric or other runs")


def overview_panels(groups: Groups, over: str) -> list[tuple[str, str]]:
    """Return the panels of the overview, as pairs of the columns y and x."""
    returns, *others = outcomes(groups)
    drawn = [name for name in others if any(run.curve(name, over) for runs in groups.values() for run in runs)]
    panels = [(name, over) for name in (*drawn, "approx_kl", "clip_fraction")]
    return [(returns, "env_steps"), (returns, "wall_seconds"), *panels]


def draw_overview(groups: Groups, over: str) -> Figure:
    """Draw the panels of the overview, and the phase times of the first run of each group."""
    panels = overview_panels(groups, over)
    ratios = [1.0] * -(-(len(panels) + len(groups)) // 2) + [0.2]  # the last row has the legend of the phases
    figure, axes = new_figure(len(ratios), 2, height=2.0, gridspec_kw={"height_ratios": ratios})
    for axis, panel in zip(axes, panels, strict=False):
        draw_groups(axis, groups, *panel)
    add_legend(figure, axes[0])
    rest = axes[len(panels) :]
    for axis, (name, members) in zip(rest, groups.items(), strict=False):
        draw_phases(axis, members, name)
    legend = axes[-2].legend(*rest[0].get_legend_handles_labels(), ncols=5, loc="upper left")
    legend.set_in_layout(False)  # it is wider than its panel
    for axis in rest[len(groups) :]:
        axis.set_axis_off()
    return figure
