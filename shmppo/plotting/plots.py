"""The figures of `python -m shmppo.plot RUN_DIR…` and `python -m shmppo.plot kl RUN_DIR…`.

They are drawn from metrics.csv, eval.csv, or recorded KL profiles. The labels come from config.json.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shmppo.config.checks import nearest, require
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY
from shmppo.plotting.curves import Aggregate, Run, aggregate, group_runs, read_run
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save
from shmppo.ppo.kl_profile import mean_profile, read_profiles
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
SEEDS_CAPTION = "Solid: interquartile mean over seeds. Shaded: its 95 % bootstrap interval."
MEAN_CAPTION = " Dashed: mean, from 4 seeds on."
Groups = dict[str, list[Run]]
"""Runs that differ only in their seed, by the label of their group."""


def draw_aggregate(axis: Axes, curve: Aggregate, name: str, color: str, width: float = 1.4) -> None:
    """Draw the interquartile mean with its 95 % interval, and the mean as a dashed line.

    With fewer than 4 runs the two means are equal, so only one is drawn.
    """
    seeds = f" ({curve.runs} seeds)" if curve.runs > 1 else ""
    axis.plot(curve.x, curve.iqm, color=color, linewidth=width, label=name + seeds)
    if curve.runs > 1:
        axis.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    if curve.runs >= 4:
        axis.plot(curve.x, curve.mean, color=color, linewidth=0.8, linestyle="--")


def draw_phases(axis: Axes, run: Run, title: str) -> None:
    """Draw the share of each phase in the time of an iteration, over the run, as means over 50 equal parts."""
    zeros = np.zeros(len(run.columns["iteration"]))
    seconds = np.stack([run.columns.get(f"{phase}_seconds", zeros) for phase in PHASES])  # earlier versions had fewer
    shares = seconds / seconds.sum(axis=0)
    parts = np.array_split(np.arange(shares.shape[1]), min(50, shares.shape[1]))
    means = np.stack([shares[:, part].mean(axis=1) for part in parts], axis=1)  # [phases, parts]
    iterations = [run.columns["iteration"][part].mean() for part in parts]
    axis.stackplot(iterations, 100 * means, colors=COLORS, labels=PHASES)
    axis.set_ylim(0, 100)
    text = textwrap.fill(
        textwrap.shorten(f"time of {title}", TITLE_CHARACTERS, placeholder=" …"), TITLE_CHARACTERS // 2
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
    """Draw one curve per group of runs. A panel without a curve says so.

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
    known = {*GLOSSARY, *EVALUATION_GLOSSARY}.union(*(run.columns.keys() | run.evaluations.keys() for run in runs))
    require(
        metric in known,
        f"--metric {metric} is not a metric{nearest(metric, known)}; the metrics are the columns of "
        f"{runs[0].directory / 'metrics.csv'} and eval.csv",
    )
    without = ", ".join(str(run.directory) for run in runs if run.curve(metric, over) is None)
    require(not without, f"--metric {metric}: {without} has fewer than two values; name another metric or other runs")


def overview_panels(over: str) -> list[tuple[str, str]]:
    """Return the panels of the overview, as pairs of the columns y and x."""
    returns = [("return_mean_100", "env_steps"), ("return_mean_100", "wall_seconds")]
    return [*returns, ("approx_kl", over), ("clip_fraction", over)]


def draw_overview(groups: Groups, over: str) -> Figure:
    """Draw returns over steps and time, KL, clip fraction, and the phase times of the first run of each group."""
    panels = overview_panels(over)
    ratios = [1.0] * (2 + -(-len(groups) // 2)) + [0.2]  # the last row has the legend of the phases
    figure, axes = new_figure(len(ratios), 2, height=2.0, gridspec_kw={"height_ratios": ratios})
    for axis, panel in zip(axes, panels, strict=False):
        draw_groups(axis, groups, *panel)
    add_legend(figure, axes[0])
    rest = axes[len(panels) :]
    for axis, (name, members) in zip(rest, groups.items(), strict=False):
        draw_phases(axis, members[0], name)
    legend = axes[-2].legend(*rest[0].get_legend_handles_labels(), ncols=5, loc="upper left")
    legend.set_in_layout(False)  # it is wider than its panel
    for axis in rest[len(groups) :]:
        axis.set_axis_off()
    return figure


def plot_profiles(run_dirs: tuple[Path, ...], out: Path) -> None:
    """Draw both KLs of each profile as thin lines, their means as bold lines, and the monotonic share by iteration.

    Runs that differ only in their seed have the same color.

    Raises:
        ConfigError: see `plot_curves`.
    """
    figure, axes = new_figure(1, 3, height=2.8)
    groups = group_runs([read_run(run_dir) for run_dir in run_dirs])
    for i, (name, members) in enumerate(groups.items()):
        color, recorded = COLORS[i % len(COLORS)], [read_profiles(run.directory) for run in members]
        profiles = [profile for by_iteration in recorded for profile in by_iteration.values()]
        for axis, kind in zip(axes, ("sequential", "reference"), strict=False):
            for profile in profiles:
                values = getattr(profile, kind)[:-1]
                logs = np.log10(values, where=values > 0, out=np.full(len(values), np.nan))
                axis.plot(profile.share[:-1], logs, color=color, linewidth=0.5, alpha=0.25)
            axis.plot(*mean_profile(profiles, kind), color=color, linewidth=1.6, label=name)
        iterations = [iteration for by_iteration in recorded for iteration in by_iteration]
        axes[2].plot(iterations, [p.monotonic_share for p in profiles], ".", color=color, label=name)
    label(axes[0], "share of the update's data", "log₁₀ nats", "sequential KL(next policy ‖ this)")
    label(axes[1], "share of the update's data", "log₁₀ nats", "reference KL(last policy ‖ this)")
    label(axes[2], "iteration", "share of steps", "steps at which the reference KL falls")
    axes[2].set_ylim(0, 1.05)
    add_legend(figure, axes[0])
    save(figure, out, "Thin: each recorded update. Bold: mean of the updates.")
