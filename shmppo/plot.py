"""Plot runs: `python -m shmppo.plot RUN_DIR…` and `python -m shmppo.plot kl RUN_DIR…`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.errors import ConfigError, run_command
from shmppo.plotting.plots import plot_curves, plot_profiles


@dataclass(frozen=True)
class Plot:
    """Curves of one or several runs; runs that differ only in their seed become one curve."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of the runs."""
    out: Path = Path("curves.svg")
    """File to write; its ending decides the format: svg, png or pdf."""


@dataclass(frozen=True)
class KLPlot:
    """KL profiles of one or several runs: sequential and reference KL against the share of data processed."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs with --kl-profile-every."""
    out: Path = Path("kl.svg")
    """File to write; its ending decides the format: svg, png or pdf."""


def main() -> int:
    """Run the command; returns the exit code. To plot a directory named kl, write ./kl."""
    return run_command(_plot)


def _plot() -> None:
    arguments = sys.argv[1:]
    profiles = arguments[:1] == ["kl"]
    prog = "python -m shmppo.plot kl" if profiles else "python -m shmppo.plot"
    kind: type[Plot] | type[KLPlot] = KLPlot if profiles else Plot
    options = tyro.cli(kind, args=arguments[profiles:], prog=prog)
    if not options.run_dirs:
        raise ConfigError("no run is named; give the directories of one or more runs")
    (plot_profiles if profiles else plot_curves)(options.run_dirs, options.out)
    print(options.out)


if __name__ == "__main__":
    sys.exit(main())
