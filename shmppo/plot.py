"""Plot learning curves (`python -m shmppo.plot RUN_DIR…`) and KL profiles (`python -m shmppo.plot kl RUN_DIR…`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.errors import ConfigError, run_command
from shmppo.plotting.plots import plot_curves, plot_profiles


@dataclass(frozen=True)
class Plot:
    """Plot the learning curves of one or more runs. Runs that differ only in their seed become one curve."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    out: Path = Path("curves.svg")
    """File to write. Its suffix selects the format: svg, png, or pdf."""


@dataclass(frozen=True)
class KLPlot:
    """Plot the KL profiles of one or more runs: sequential and reference KL against the fraction of data processed."""

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
    prog = "python -m shmppo.plot kl" if profiles else "python -m shmppo.plot"
    kind: type[Plot] | type[KLPlot] = KLPlot if profiles else Plot
    options = tyro.cli(kind, args=arguments[profiles:], prog=prog)
    if not options.run_dirs:
        raise ConfigError("no run directory is given; name the directories of one or more runs")
    (plot_profiles if profiles else plot_curves)(options.run_dirs, options.out)
    print(options.out)


if __name__ == "__main__":
    sys.exit(main())
