"""Compare the time that the recovery of a killed worker takes with that of an older commit.

    python -m figures.commits.recovery 2881fb8

Runs of task A with two workers alternate between the commits. After 800 steps of episodes of 1000 steps, a worker is
killed. The recovery is the time from the kill to the end of the iteration, minus the median time of an iteration.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from figures.commits.measure import checkout
from figures.common.command_line import script_parser
from figures.common.interleaved import RunGroup
from figures.common.jobs import ENDLESS, TASK_A, flags
from figures.common.paths import ROOT
from figures.common.tables import append_rows
from shmppo.utils.machine import git_revision, processor, usable_cores

TABLE = Path(__file__).with_name("recovery.csv")
KILLED_AFTER = 6  # iterations of 128 steps; the kill follows within the next one
JOB = TASK_A | ENDLESS | {"workers": 2, "grad_shards": 2}


def recovery_seconds(path: Path) -> float:
    """Run the package of a checkout, kill a worker, and return the seconds until the iteration is complete."""
    with tempfile.TemporaryDirectory() as directory:
        group = RunGroup([flags(JOB)], Path(directory), checkout=path)
        try:
            _wait_for_row(group, KILLED_AFTER)
            wall = group.columns()["wall_seconds"]
            usual = statistics.median(b - a for a, b in itertools.pairwise(wall))
            time.sleep(usual / 4)
            rows, began = len(wall), time.monotonic()
            max(_descendants(group), key=lambda process: process.create_time()).kill()
            _wait_for_row(group, rows + 1)
            seconds = time.monotonic() - began - 0.75 * float(usual)
            if "starting another" not in (Path(directory) / "run0" / "run.log").read_text():
                raise RuntimeError("no worker was replaced")
            return seconds
        finally:
            group.kill()


def _wait_for_row(group: RunGroup, count: int) -> None:
    deadline = time.monotonic() + 120
    while group.row_count < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {count} iterations after 120 s")
        time.sleep(0.005)


def _descendants(group: RunGroup) -> list[psutil.Process]:
    """The workers: children of the fork server, which is a child of the learner."""
    learner = psutil.Process(group.pids[0])
    children = [child for child in learner.children() if child.status() != psutil.STATUS_ZOMBIE]
    servers = [child for child in children if "forkserver" in " ".join(child.cmdline())]
    return [worker for server in servers for worker in server.children()]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--repetitions", type=int, default=5, help="kills of each commit")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    with checkout(options.commit) as old:
        for _ in range(options.repetitions):
            for name, path in (("old", old), ("new", ROOT)):
                seconds[name].append(recovery_seconds(path))
                print(name, round(seconds[name][-1], 2), flush=True)
    row = {
        "old": options.commit,
        "new": (git_revision() or "installed")[:7],
        "old_seconds": round(statistics.median(seconds["old"]), 2),
        "new_seconds": round(statistics.median(seconds["new"]), 2),
        "repetitions": options.repetitions,
        "processor": processor(),
        "cores": usable_cores(),
    }
    append_rows(TABLE, [row], note=None)
    print(row)


if __name__ == "__main__":
    main()
