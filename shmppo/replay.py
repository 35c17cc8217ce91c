"""Replay a failed episode: `python -m shmppo.replay RUN_DIR/failed_episode.json`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.errors import EnvError, run_command
from shmppo.tools.replay import replay


@dataclass(frozen=True)
class ReplayConfig:
    """What `python -m shmppo.replay` is told."""

    file: tyro.conf.Positional[Path]
    """failed_episode.json of a run."""


def main() -> int:
    """Run the command; returns the exit code. An EnvError keeps its traceback: a debugger can stop at it."""
    return run_command(_replay, raised=EnvError)


def _replay() -> None:
    options = tyro.cli(ReplayConfig, prog="python -m shmppo.replay", description=__doc__)
    steps = replay(options.file)
    print(f"all {steps} steps succeeded: the failure does not depend on (seed, actions) alone")


if __name__ == "__main__":
    sys.exit(main())
