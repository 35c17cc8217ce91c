"""Search for the fastest flags for a given batch size: `python -m shmppo.tune --env …`."""

from __future__ import annotations

import sys

import tyro

from shmppo.bench.measured_run import INTERRUPTED
from shmppo.errors import run_command
from shmppo.tools.tuning import Tune, tune


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: tune(tyro.cli(Tune, prog="python -m shmppo.tune")), INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
