"""Benchmarks: `python -m shmppo.bench COMMAND [flags of train]`. They time the trainer itself, not a copy of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro

from shmppo import bench_scaling, bench_stragglers, bench_throughput, bench_topologies
from shmppo.bench_run import INTERRUPTED
from shmppo.bench_scaling import Scaling
from shmppo.bench_stragglers import Stragglers
from shmppo.bench_throughput import Throughput
from shmppo.bench_topologies import Topologies
from shmppo.train import exit_code

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
    """The command line; returns the exit code."""

    def measure() -> None:
        options = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="python -m shmppo.bench")
        _REPORTS[type(options)](options)

    return exit_code(measure, INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
