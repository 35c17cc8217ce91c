"""The process of a training run of a trial: `python -m shmppo.search.trial_process SEARCH CORES FLAGS-OF-TRAIN…`.

It becomes the command `train`. It uses only its cores, and the system kills it when the search with the process id
SEARCH ends.
"""

from __future__ import annotations

import os
import sys

from shmppo.utils.signals import kill_with_parent


def run() -> None:
    """Replace this process by the command `train` with the arguments of the command line."""
    parent, cores, *arguments = sys.argv[1:]
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    kill_with_parent()
    if os.getppid() != int(parent):  # it has ended before
        sys.exit("the search has ended")
    os.execv(sys.executable, [sys.executable, "-m", "shmppo.train", *arguments])


if __name__ == "__main__":
    run()
