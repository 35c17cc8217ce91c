"""Look at episodes of a run again: `python -m shmppo.replay RUN_DIR --episode worst:3`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
from shmppo.config.train_config import compute_like
from shmppo.config.trust import Modules
from shmppo.errors import output_as_stderr, print_text, run_command
from shmppo.utils.commands import program
from shmppo.utils.files import short_path, user_path


@dataclass(frozen=True)
class ReplayConfig:
    """Look at episodes of training again, or repeat the one that failed."""

    run: tyro.conf.Positional[Path]
    """Directory of a run that has ended, or its file failed_episode.json."""
    episode: tuple[str, ...] = ()
    """Rows of episodes.csv: ENV:NUMBER, best:N or worst:N (by return), or COLUMN=VALUE (the newest 10)."""
    out: Path | None = None
    """Directory of the results. None: episodes in that of the run."""
    trust: Modules = ()
    """A module or package that may be imported although only a run directory names it, for example that of its
    environment. Give the flag once per module."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_replay)


def _replay() -> None:
    options = parse(ReplayConfig, sys.argv[1:], program("replay"), example="runs/pendulum --episode worst:3 7:120")
    run = user_path(options.run, "RUN")
    if options.episode:
        out = user_path(options.out or run / "episodes", "--out")
        compute_like(run)
        from shmppo.tools.replay_episodes import replay_episodes

        print_text(f"wrote {short_path(replay_episodes(run, options.episode, out, options.trust))}")
        return
    require(not run.is_dir(), f"{run} has many episodes; choose some of them, for example --episode worst:3")
    from shmppo.runs.failed_episode import replay

    with output_as_stderr():
        steps = replay(run, options.trust)
    print(f"all {steps} steps succeeded; the failure depends on more than the seed and the actions")


if __name__ == "__main__":
    sys.exit(main())
