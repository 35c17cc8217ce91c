"""Replay an episode in which an environment failed: `python -m shmppo.replay RUN_DIR/failed_episode.json`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.errors import EnvError, run_command
from shmppo.tools.replay import replay


@dataclass(frozen=True)
class ReplayConfig:
    """The flags of `python -m shmppo.replay`."""

    file: tyro.conf.Positional[Path]
    """The file failed_episode.json of a run."""


def main() -> int:
    """Run the command and return its exit code. Raise the environment's EnvError, so that a debugger can stop there."""
    return run_command(_replay, raised=EnvError)


def _replay() -> None:
    options = tyro.cli(ReplayConfig, prog="python -m shmppo.replay", description=__doc__)
    steps = replay(options.file)
    print(f"all {steps} steps succeeded; the failure depends on more than the seed and the actions")


if __name__ == "__main__":
    sys.exit(main())
