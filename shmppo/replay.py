"""Replay an episode in which an environment failed: `python -m shmppo.replay RUN_DIR/failed_episode.json`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.config.command_line import parse
from shmppo.config.trust import Modules
from shmppo.errors import output_as_stderr, run_command
from shmppo.utils.commands import program


@dataclass(frozen=True)
class ReplayConfig:
    """Replay an episode in which an environment failed."""

    file: tyro.conf.Positional[Path]
    """The file failed_episode.json of a run."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    environment. Give the flag once per module."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_replay)


def _replay() -> None:
    options = parse(ReplayConfig, sys.argv[1:], program("replay"), example="runs/pendulum/failed_episode.json")
    from shmppo.runs.failed_episode import replay

    with output_as_stderr():
        steps = replay(options.file, options.trust)
    print(f"all {steps} steps succeeded; the failure depends on more than the seed and the actions")


if __name__ == "__main__":
    sys.exit(main())
