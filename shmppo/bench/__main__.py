"""Command `python -m shmppo.bench COMMAND [flags of train]`: run a benchmark.

Every benchmark times real training runs, not a simplified copy of the training loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro

from shmppo.bench import scaling as bench_scaling
from shmppo.bench import stragglers as bench_stragglers
from shmppo.bench import throughput as bench_throughput
from shmppo.bench import topologies as bench_topologies
from shmppo.bench.measured_run import INTERRUPTED
from shmppo.bench.scaling import Scaling
from shmppo.bench.stragglers import Stragglers
from shmppo.bench.throughput import Throughput
from shmppo.bench.topologies import Topologies
from shmppo.errors import run_command

COMMANDS: dict[str, Callable[..., Any]] = {
    "throughput": Throughput,
    "scaling": Scaling,
    "stragglers": Stragglers,
    "topologies": Topologies,
}
_REPORTS: dict[type, Callable[[Any], object]] = {
    Throughput: bench_throughput.report,
    Scaling: bench_scaling.report,
    Stragglers: bench_stragglers.report,
    Topologies: bench_topologies.report,
}


def main() -> int:
    """Parse the command line and run the benchmark; returns the exit code."""

    def measure() -> None:
        options = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="python -m shmppo.bench")
        _REPORTS[type(options)](options)

    return run_command(measure, INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
