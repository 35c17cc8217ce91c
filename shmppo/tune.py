"""Search for the fastest flags for a given batch size: `python -m shmppo.tune --env …`."""

from __future__ import annotations

import sys

from shmppo.bench.options import INTERRUPTED, Tune
from shmppo.config.command_line import parse, program
from shmppo.config.flag_table import flag_groups
from shmppo.config.help import Page
from shmppo.errors import run_command


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_tune, INTERRUPTED)


def _tune() -> None:
    page = Page(
        program("tune"),
        "Search for the fastest number of workers, environments × rollout steps, and gradient shards. "
        "The batch size, --num-envs × --rollout-steps, does not change.",
        examples=("--env HalfCheetah-v5 --num-envs 16 --rollout-steps 256 --out fastest.json",),
        common=tuple(flag.field for flag in flag_groups(Tune)[0].flags),
    )
    options = parse(Tune, sys.argv[1:], page)
    from shmppo.tools.tuning import tune

    tune(options)


if __name__ == "__main__":
    sys.exit(main())
