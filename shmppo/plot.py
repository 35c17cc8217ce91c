"""Plot learning curves (`python -m shmppo.plot RUN_DIR…`), or what an extension plots (`… plot NAME RUN_DIR…`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
from shmppo.config.extensions import added
from shmppo.errors import run_command
from shmppo.utils.commands import program
from shmppo.utils.files import user_path


@dataclass(frozen=True)
class Plot:
    """Plot learning curves. Runs that differ only in their seed become one curve."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    metric: tuple[str, ...] = ()
    """Metrics to plot, one panel each: columns of metrics.csv or eval.csv, for example approx_kl eval/return.
    Without this flag, the plot is an overview: returns and metrics of info, also those of evaluations, KL, clip
    fraction, and the time of each phase."""
    label: tuple[str, ...] = ()
    """RUN_DIR=NAME, names of runs in legends. Runs of the same configuration without a name get it too, and runs with
    the same name become one curve."""
    x: Literal["steps", "seconds"] = "steps"
    """X axis of the metrics: environment steps or seconds of training."""
    out: Path = Path("curves.svg")
    """File to write. Its suffix selects the format: svg, png, pdf, or html. html: a page that needs no other file, with
    the curves, a comparison of configurations, options and their differences, versions, and videos."""


def main() -> int:
    """Run the command and return its exit code. A run directory with the name of a kind must be written as ./NAME."""
    return run_command(_plot)


def _plot() -> None:
    kinds = {module.NAME: module for module in added("plots")}
    kind, name, arguments = kinds.get(sys.argv[1] if len(sys.argv) > 1 else ""), "", sys.argv[1:]
    if kind is not None:
        name, *arguments = arguments
    options_type = Plot if kind is None else kind.PlotOptions
    example = f"runs/pendulum-s1 runs/pendulum-s2 --out {name or 'curves'}.png"
    options = parse(options_type, arguments, f"{program('plot')} {name}".strip(), example=example)
    require(len(options.run_dirs) > 0, "no run is given; name one or more directories of runs before the flags")
    out = user_path(options.out, "--out")
    if kind is not None:
        kind.draw(options.run_dirs, out)
    else:
        from shmppo.plotting.plot_curves import plot_curves

        plot_curves(options.run_dirs, out, metrics=options.metric, x=options.x, labels=options.label)
    print(options.out)


if __name__ == "__main__":
    sys.exit(main())
