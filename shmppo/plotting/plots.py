"""Plots of runs: `python -m shmppo.plot RUN_DIR…` and `python -m shmppo.plot kl RUN_DIR…`.

Reads metrics.csv or the recorded KL profiles, and config.json for the labels.
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

# Okabe and Ito's colors: told apart with any color vision, and in gray.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#BBBBBB")
AXIS_LABELS = {
    "env_steps": "environment steps",
    "wall_seconds": "wall time (s)",
    "return_mean_100": "return, last 100 episodes",
    "approx_kl": "KL(old ‖ new), nats",
    "clip_fraction": "clip fraction",
}
SEEDS_CAPTION = "Interquartile mean over seeds, shaded its 95 % bootstrap interval; dashed the mean, from 4 seeds on."
SHARED_PANELS = (
    ("return_mean_100", "env_steps"),
    ("return_mean_100", "wall_seconds"),
    ("approx_kl", "env_steps"),
    ("clip_fraction", "env_steps"),
)


def new_figure(rows: int, columns: int, *, width: float = 4.2, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """A figure of rows × columns panels, each of the given size in inches, and its axes row by row.

    Raises:
        ConfigError: where matplotlib is not installed.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib; install it with: pip install 'shmppo[plot]'") from error
    # Text stays text, ids are those of the content: the same numbers give the same file.
    rcParams["svg.fonttype"], rcParams["svg.hashsalt"] = "none", "shmppo"
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def label(axis: Axes, x: str, y: str, title: str = "") -> None:
    """Name both axes of a panel, and the panel."""
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.set_title(title, fontsize=9)


def save(figure: Figure, path: Path, caption: str = "") -> None:
    """Write the figure, with a caption below it. Raises ConfigError for a format that matplotlib does not know."""
    if caption:
        columns = int(figure.get_figwidth() * 17)
        figure.supxlabel("\n".join(textwrap.wrap(caption, columns)), fontsize=6.5, color="#555555")
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise ConfigError(f"--out {path}: the ending must be one of {', '.join(known)}")
    make_parent_directory(path, "--out")
    try:
        figure.savefig(path, dpi=160, metadata={"Date": None} if ending == "svg" else None)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error}; name another file") from error


def draw_aggregate(axis: Axes, curve: Aggregate, name: str, color: str, width: float = 1.4) -> None:
    """Interquartile mean with its 95 % interval; the mean dashed, where there are runs enough for both to differ."""
    seeds = f" ({curve.runs} seeds)" if curve.runs > 1 else ""
    axis.plot(curve.x, curve.iqm, color=color, linewidth=width, label=name + seeds)
    if curve.runs > 1:
        axis.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    if curve.runs >= 4:
        axis.plot(curve.x, curve.mean, color=color, linewidth=0.8, linestyle="--")


def draw_phases(axis: Axes, run: Run, title: str) -> None:
    """How the time of an iteration splits into phases, over the run; means over its 50 equal parts."""
    shares = phase_shares(run, PHASES)
    parts = np.array_split(np.arange(shares.shape[1]), min(50, shares.shape[1]))
    means = np.stack([shares[:, part].mean(axis=1) for part in parts], axis=1)  # [phases, parts]
    iterations = [run.columns["iteration"][part].mean() for part in parts]
    axis.stackplot(iterations, 100 * means, colors=COLOURS, labels=PHASES)
    axis.set_ylim(0, 100)
    label(axis, "iteration", "share of time (%)", f"time of {title}")


def plot_curves(run_dirs: tuple[Path, ...], out: Path) -> None:
    """Returns against steps and time, KL and clip fraction; and each group's phases, those of its first run.

    Raises:
        ConfigError: without matplotlib, or for an unknown file format.
    """
    groups = group_runs([read_run(run_dir) for run_dir in run_dirs])
    figure, axes = new_figure(2 + -(-len(groups) // 2), 2)
    for axis, (column, over) in zip(axes, SHARED_PANELS, strict=False):
        for i, (name, members) in enumerate(groups.items()):
            curve = aggregate(members, column, over)
            if curve is not None:
                # The first ones wider: curves that are the same stay visible below one another.
                draw_aggregate(axis, curve, name, COLOURS[i % len(COLOURS)], 1.4 + 1.2 * min(len(groups) - 1 - i, 3))
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
    """Both KLs of (iteration, profile) pairs, thin, and their means; monotonic share by iteration."""
    for axis, kind in zip(axes, ("sequential", "reference"), strict=False):
        for _, profile in profiles:
            values = getattr(profile, kind)[:-1]
            logs = np.log10(values, where=values > 0, out=np.full(len(values), np.nan))
            axis.plot(profile.share[:-1], logs, color=color, linewidth=0.5, alpha=0.25)
        axis.plot(*mean_profile([profile for _, profile in profiles], kind), color=color, linewidth=1.6, label=name)
    axes[2].plot(*zip(*((i, p.monotonic_share) for i, p in profiles), strict=True), ".", color=color, label=name)


def plot_profiles(run_dirs: tuple[Path, ...], out: Path) -> None:
    """KL profiles of runs, one color for those that differ only in their seed. Raises ConfigError as `plot_curves`."""
    figure, axes = new_figure(1, 3, width=3.6)
    groups = group_runs([read_run(run_dir) for run_dir in run_dirs])
    for i, (name, members) in enumerate(groups.items()):
        profiles = [pair for run in members for pair in read_profiles(run.directory).items()]
        draw_profiles(axes, profiles, name, COLOURS[i % len(COLOURS)])
    label_profiles(axes)
    axes[0].legend(fontsize=7, frameon=False)
    save(figure, out, "Thin: each recorded update. Bold: their mean.")


def label_profiles(axes: list[Axes]) -> None:
    """Name the axes of the panels of `draw_profiles`."""
    label(axes[0], "share of the update's data", "log₁₀ nats", "sequential KL(next policy ‖ this)")
    label(axes[1], "share of the update's data", "log₁₀ nats", "reference KL(last policy ‖ this)")
    label(axes[2], "iteration", "share of steps", "steps at which the reference KL falls")
    axes[2].set_ylim(0, 1.05)
