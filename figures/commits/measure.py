"""Compare the speed of this checkout with that of an older commit, on several jobs.

    python -m figures.commits.measure 2881fb8

For each job, a run of each commit executes interleaved, in time slices. A slice of the old commit and the following
slice of the new one give a ratio. Adds one row per job to commits.csv: the median, the lowest, and the highest ratio.
Use it before a change of the hot path is merged. The flags of `JOBS` must exist in both commits. Pong needs the extra
`atari`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures.common.command_line import script_parser
from figures.common.interleaved import add_slice_flags, rounds, started
from figures.common.jobs import ENDLESS, TASK_A, TASK_B, flags
from figures.common.paths import ROOT
from figures.common.tables import append_rows
from shmppo.config.presets import PRESETS
from shmppo.utils.machine import git_revision, processor, usable_cores

TABLE = Path(__file__).with_name("commits.csv")
FEED_FORWARD = {"core": "none", "encoder_sizes": (64, 64)}
PONG = {name: value for name, value in PRESETS["ALE/Pong-v5"].items() if name not in ("total_steps", "encoder")}
PONG |= {"env_kwargs": {"frameskip": 1, "repeat_action_probability": 0.0}, "workers": 0}
JOBS: dict[str, dict[str, Any]] = {
    "A": TASK_A | {"workers": 2, "grad_shards": 2},
    "A, one process": TASK_A | {"workers": 0, "grad_shards": 2},
    "A, Humanoid": TASK_A | {"env": "Humanoid-v5", "workers": 2, "grad_shards": 2},
    "A, no memory": TASK_A | FEED_FORWARD | {"workers": 2, "grad_shards": 2},
    "B": TASK_B | {"workers": 2, "grad_shards": 2},
    "Pong, one process": PONG,
}
NEW_FLAGS: dict[str, dict[str, Any]] = {
    "Pong, one process": {name: PRESETS["ALE/Pong-v5"][name] for name in ("env_kwargs", "encoder")},
}
"""Changes to jobs in this checkout: what the preset now has, and the older commit does not."""


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check out a commit in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkout"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(path), commit], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT, check=True)


def ratios(name: str, old: Path, options: argparse.Namespace) -> tuple[list[float], dict[str, float]]:
    """Run a job with both commits. Return the ratio of each round, and the median steps per second by commit."""
    job = JOBS[name] | ENDLESS
    commands = {"old": [flags(job)], "new": [flags(job | NEW_FLAGS.get(name, {}))]}
    with (
        tempfile.TemporaryDirectory() as directory,
        started(commands, Path(directory), checkouts={"old": old}) as groups,
    ):
        rates = list(rounds(groups, options.slices, options.seconds))
    medians = {name: statistics.median(rate[name] for rate in rates) for name in ("old", "new")}
    return [rate["new"] / rate["old"] for rate in rates], medians


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="jobs to run")
    add_slice_flags(parser, 9, 6.0)
    options = parser.parse_args()
    with checkout(options.commit) as old:
        for name in options.jobs:
            found, medians = ratios(name, old, options)
            row = {
                "old": options.commit,
                "new": (git_revision() or "installed")[:7],
                "job": name,
                "ratio": round(statistics.median(found), 3),
                "lowest": round(min(found), 3),
                "highest": round(max(found), 3),
                "old_steps_per_second": round(medians["old"]),
                "new_steps_per_second": round(medians["new"]),
                "rounds": len(found),
                "processor": processor(),
                "cores": usable_cores(),
            }
            append_rows(TABLE, [row], note=None)
            print(row, flush=True)


if __name__ == "__main__":
    main()
