"""Compare the speed of this checkout with that of an older commit, on several jobs.

    python -m figures.commits.measure 2881fb8

For each job, a run of each commit executes interleaved, in time slices. A slice of the old commit and the following
slice of the new one give a ratio. Adds one row per job to commits.csv: the median, the lowest, and the highest ratio.
Use it before a change of the hot path is merged. The flags of `JOBS` must exist in both commits. Pong needs the extra
`atari`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from figures.common.command_line import script_parser
from figures.common.interleaved import add_slice_flags, interleaved_rates, spread
from figures.common.jobs import ENDLESS, TASK_A, TASK_B
from figures.common.paths import ROOT
from figures.common.tables import append_rows
from shmppo.config.checks import flags_with_values
from shmppo.utils.machine import git_revision, processor, usable_cores

TABLE = Path(__file__).with_name("commits.csv")
FEED_FORWARD = {"core": "none", "encoder_sizes": (64, 64)}
JOBS: dict[str, dict[str, Any]] = {
    "A": TASK_A | {"workers": 2, "grad_shards": 2},
    "A, one process": TASK_A | {"workers": 0, "grad_shards": 2},
    "A, Humanoid": TASK_A | {"env": "Humanoid-v5", "workers": 2, "grad_shards": 2},
    "A, no memory": TASK_A | FEED_FORWARD | {"workers": 2, "grad_shards": 2},
    "A, GRU": TASK_A | {"core": "gru", "workers": 2, "grad_shards": 2},
    "A, LSTM 512": TASK_A | {"hidden_size": 512, "workers": 2, "grad_shards": 2},
    "LSTM 512, default shards": TASK_A | {"hidden_size": 512, "workers": 2},
    "default": {"workers": 2},
    "B": TASK_B | {"workers": 2, "grad_shards": 2},
    "Pong, one process": {"preset": "ALE/Pong-v5", "workers": 0},
}


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check out a commit in a temporary directory, and compile its kernels if it has some."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkout"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(path), commit], cwd=ROOT, check=True)
        try:
            if (path / "setup.py").exists():
                subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=path, check=True)
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT, check=True)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="jobs to run")
    add_slice_flags(parser, 9, 6.0)
    options = parser.parse_args()
    with checkout(options.commit) as old:
        for name in options.jobs:
            commands = [flags_with_values(JOBS[name] | ENDLESS)]
            rates = interleaved_rates(
                {"old": commands, "new": commands}, options.slices, options.seconds, checkouts={"old": old}
            )
            row = {
                "old": options.commit,
                "new": (git_revision() or "installed")[:7],
                "job": name,
                **spread(rates, "new", "old"),
                "old_steps_per_second": round(median(rate["old"] for rate in rates)),
                "new_steps_per_second": round(median(rate["new"] for rate in rates)),
                "rounds": len(rates),
                "processor": processor(),
                "cores": usable_cores(),
            }
            append_rows(TABLE, [row], note=None)
            print(row, flush=True)


if __name__ == "__main__":
    main()
