"""The figures of `python -m shmppo.plot RUN_DIR…` and `python -m shmppo.plot kl RUN_DIR…`.

They are drawn from metrics.csv or from recorded KL profiles. The labels come from config.json.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shmppo.errors import ConfigError
from shmppo.plotting.curves import Aggregate, Run, aggregate, group_runs, phase_shares, read_run
from shmppo.ppo.kl_profile import KLProfile, mean_profile, read_profiles
from shmppo.utils.files import make_parent_directory
from shmppo.utils.phase_timer import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito: readers with any color vision can distinguish these colors, also in gray.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#BBBBBB")
AXIS_LABELS = {
    "env_steps": "environment steps",
    "wall_seconds": "wall time (s)",
    "return_mean_100": "return, last 100 episodes",
    "approx_kl": "KL(old ‖ new), nats",
    "clip_fraction": "clip fraction",
}
SEEDS_CAPTION = (
    "Solid: interquartile mean over seeds. Shaded: its 95 % bootstrap interval. Dashed: mean, from 4 seeds on."
)
SHARED_PANELS = (
    ("return_mean_100", "env_steps"),
    ("return_mean_100", "wall_seconds"),
    ("approx_kl", "env_steps"),
    ("clip_fraction", "env_steps"),
)


def new_figure(rows: int, columns: int, *, width: float = 4.2, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """Make a figure of rows × columns panels, each of the given size in inches; returns its axes row by row.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib; install it with: pip install 'shmppo[plot]'") from error
    # Keep text as text and derive ids from the content, so that the same numbers give the same file.
    rcParams["svg.fonttype"], rcParams["svg.hashsalt"] = "none", "shmppo"
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def label(axis: Axes, x: str, y: str, title: str = "") -> None:
    """Set the axis labels and the title of a panel."""
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.set_title(title, fontsize=9)


def save(figure: Figure, path: Path, caption: str = "") -> None:
    """Write the figure, with a caption below it.

    Raises:
        ConfigError: if matplotlib does not know the format, or if the file cannot be written.
    """
    if caption:
        columns = int(figure.get_figwidth() * 17)
        figure.supxlabel("\n".join(textwrap.wrap(caption, columns)), fontsize=6.5, color="#555555")
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise ConfigError(f"--out {path}: the file name's ending must be one of {', '.join(known)}")
    make_parent_directory(path, "--out")
    try:
        figure.savefig(path, dpi=160, metadata={"Date": None} if ending == "svg" else None)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error}; name another file") from error


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
    shares = phase_shares(run, PHASES)
    parts = np.array_split(np.arange(shares.shape[1]), min(50, shares.shape[1]))
    means = np.stack([shares[:, part].mean(axis=1) for part in parts], axis=1)  # [phases, parts]
    iterations = [run.columns["iteration"][part].mean() for part in parts]
    axis.stackplot(iterations, 100 * means, colors=COLORS, labels=PHASES)
    axis.set_ylim(0, 100)
    label(axis, "iteration", "share of time (%)", f"time of {title}")


def plot_curves(run_dirs: tuple[Path, ...], out: Path) -> None:
    """Draw returns against steps and time, KL, clip fraction, and one panel of phase times per group of runs.

    The phase times are those of the first run of each group.

    Raises:
        ConfigError: if matplotlib is missing, a run cannot be read, or `out` cannot be written.
    """
    groups = group_runs([read_run(run_dir) for run_dir in run_dirs])
    figure, axes = new_figure(2 + -(-len(groups) // 2), 2)
    for axis, (column, over) in zip(axes, SHARED_PANELS, strict=False):
        for i, (name, members) in enumerate(groups.items()):
            curve = aggregate(members, column, over)
            if curve is not None:
                # Earlier curves are wider, so that equal curves on top of each other stay visible.
                draw_aggregate(axis, curve, name, COLORS[i % len(COLORS)], 1.4 + 1.2 * min(len(groups) - 1 - i, 3))
        label(axis, AXIS_LABELS[over], AXIS_LABELS[column])
    axes[0].legend(fontsize=7, frameon=False)
    rest = axes[len(SHARED_PANELS) :]
    for axis, (name, members) in zip(rest, groups.items(), strict=False):
        draw_phases(axis, members[0], name)
    rest[0].legend(fontsize=6, ncols=3, loc="lower left")
    for axis in rest[len(groups) :]:
        axis.set_axis_off()
    several = any(len(members) > 1 for members in groups.values())
    save(figure, out, SEEDS_CAPTION if several else "")


def draw_profiles(axes: list[Axes], profiles: list[tuple[int, KLProfile]], name: str, color: str) -> None:
    """Draw both KLs of each profile as thin lines, their means as bold lines, and the monotonic share by iteration.

    Args:
        axes: three panels.
        profiles: pairs of iteration and profile.
        name: label in the legend.
        color: color of all lines.
    """
    for axis, kind in zip(axes, ("sequential", "reference"), strict=False):
        for _, profile in profiles:
            values = getattr(profile, kind)[:-1]
            logs = np.log10(values, where=values > 0, out=np.full(len(values), np.nan))
            axis.plot(profile.share[:-1], logs, color=color, linewidth=0.5, alpha=0.25)
        axis.plot(*mean_profile([profile for _, profile in profiles], kind), color=color, linewidth=1.6, label=name)
    axes[2].plot(*zip(*((i, p.monotonic_share) for i, p in profiles), strict=True), ".", color=color, label=name)


def plot_profiles(run_dirs: tuple[Path, ...], out: Path) -> None:
    """Draw the KL profiles of runs. Runs that differ only in their seed have the same color.

    Raises:
        ConfigError: see `plot_curves`.
    """
    figure, axes = new_figure(1, 3, width=3.6)
    groups = group_runs([read_run(run_dir) for run_dir in run_dirs])
    for i, (name, members) in enumerate(groups.items()):
        profiles = [pair for run in members for pair in read_profiles(run.directory).items()]
        draw_profiles(axes, profiles, name, COLORS[i % len(COLORS)])
    label_profiles(axes)
    axes[0].legend(fontsize=7, frameon=False)
    save(figure, out, "Thin: each recorded update. Bold: mean of the updates.")


def label_profiles(axes: list[Axes]) -> None:
    """Set the labels of the three panels of `draw_profiles`."""
    label(axes[0], "share of the update's data", "log₁₀ nats", "sequential KL(next policy ‖ this)")
    label(axes[1], "share of the update's data", "log₁₀ nats", "reference KL(last policy ‖ this)")
    label(axes[2], "iteration", "share of steps", "steps at which the reference KL falls")
    axes[2].set_ylim(0, 1.05)
