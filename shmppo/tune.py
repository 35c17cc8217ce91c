"""Search for the fastest flags for a given batch size: `python -m shmppo.tune --env …`."""

from __future__ import annotations

import inspect
import sys

from shmppo.bench.options import INTERRUPTED, Tune
from shmppo.config.command_line import parse, program
from shmppo.errors import run_command


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_tune, INTERRUPTED)


def _tune() -> None:
    options = parse(
        Tune, sys.argv[1:], program("tune"), inspect.getdoc(Tune) or "", common=inspect.get_annotations(Tune),
        example="--env HalfCheetah-v5 --num-envs 16 --rollout-steps 256 --out fastest.json",
    )  # fmt: skip
    from shmppo.tools.tuning import tune

    tune(options)


if __name__ == "__main__":
    sys.exit(main())
