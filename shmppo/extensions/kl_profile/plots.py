"""Plots of KL profiles: `shmppo plot kl RUN_DIR…`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

NAME = "kl"


@dataclass(frozen=True)
class PlotOptions:
    """Plot the KL profiles of runs: sequential and reference KL against the data."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs with --kl-profile-every."""
    out: Path = Path("kl.svg")
    """File to write. Its suffix selects the format: svg, png, or pdf."""


def draw(run_dirs: tuple[Path, ...], out: Path) -> None:
    """Draw both KLs of each profile as thin lines, their means as bold lines, and the monotonic share by iteration.

    Runs that differ only in their seed have the same color.

    Raises:
        ConfigError: see `plot_curves`.
    """
    from shmppo.extensions.kl_profile.profile import mean_profile, read_profiles
    from shmppo.plotting.curves import group_runs, read_run
    from shmppo.plotting.plots import add_legend
    from shmppo.plotting.style import COLORS, label, new_figure, save

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
