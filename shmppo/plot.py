"""Plot learning curves (`python -m shmppo.plot RUN_DIR…`) and KL profiles (`python -m shmppo.plot kl RUN_DIR…`)."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
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
    Without this flag, the plot is an overview of returns, KL, clip fraction, and the time of each phase."""
    label: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """RUN_DIR=NAME, the name of a run in legends. Runs of the same configuration without a name get it too, and runs
    with the same name become one curve. Give the flag once per configuration."""
    x: Literal["steps", "seconds"] = "steps"
    """X axis of the metrics: environment steps or seconds of training."""
    out: Path = Path("curves.svg")
    """File to write. Its suffix selects the format: svg, png, pdf, or html. html: a page that needs no other file, with
    the curves, the options and their differences, versions, evaluations, and a video of each run that has one."""


@dataclass(frozen=True)
class KLPlot:
    """Plot the KL profiles of runs: sequential and reference KL against the data."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs with --kl-profile-every."""
    out: Path = Path("kl.svg")
    """File to write. Its suffix selects the format: svg, png, or pdf."""


def main() -> int:
    """Run the command and return its exit code. A run directory named kl must be written as ./kl."""
    return run_command(_plot)


def _plot() -> None:
    arguments = sys.argv[1:]
    profiles = arguments[:1] == ["kl"]
    kind: type[Plot] | type[KLPlot] = KLPlot if profiles else Plot
    prog = program("plot") + (" kl" if profiles else "")
    example = f"runs/pendulum-s1 runs/pendulum-s2 --out {'kl' if profiles else 'curves'}.png"
    options = parse(kind, arguments[profiles:], prog, inspect.getdoc(kind) or "", example=example)
    from shmppo.plotting.plot_curves import plot_curves
    from shmppo.plotting.plots import plot_profiles

    require(len(options.run_dirs) > 0, "no run directory is given; name the directories of one or more runs")
    out = user_path(options.out, "--out")
    if isinstance(options, KLPlot):
        plot_profiles(options.run_dirs, out)
    else:
        plot_curves(options.run_dirs, out, metrics=options.metric, x=options.x, labels=options.label)
    print(options.out)


if __name__ == "__main__":
    sys.exit(main())
