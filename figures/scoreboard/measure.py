"""Run all experiments of returns, one after the other on one core, which takes days.

    setsid nohup nice -n 15 python -m figures.scoreboard.measure > scoreboard.log 2>&1 &

The first pass trains one seed of every row, the next passes further seeds, so a queue that is stopped leaves complete
tables. It can be stopped at any time: `kill -- -PID` ends it, and within seconds the run in progress. Started again
after that, it resumes this run and skips what the tables have. A command that fails does not end the queue.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from figures.common.command_line import script_parser
from figures.common.paths import ROOT
from figures.popgym.cases import TASKS

POPGYM = "popgym.measure --workers 0 --seeds {seed}"
NOISY, GAMES = ([task for task in TASKS if task.startswith(names)] for names in ("Noisy", ("Mine", "Concentration")))
OTHERS = [task for task in TASKS if task not in (*NOISY, *GAMES)]
QUEUE = [
    ("fixed_points.measure --seeds {seed}", 4),
    (f"{POPGYM} --cores gtrxl --tasks RepeatPreviousHard", 1),
    (f"{POPGYM} --cores lru gru --tasks {' '.join(OTHERS)}", 3),
    (f"{POPGYM} --cores lru gru --variants large_batch --tasks {' '.join(NOISY)}", 3),
    (f"{POPGYM} --cores lru gru --variants wide --tasks {' '.join(GAMES)}", 1),
    ("published.measure occluded --seeds {seed}", 5),
    ("published.measure zoo --seeds {seed}", 5),
    ("batches.environments --seeds {seed}", 3),
    ("returns.measure --all --seeds {seed}", 3),
    ("search.measure search hopper", 1),
    ("search.measure fresh hopper --seeds 10{seed}", 3),
]
"""(command without `python -m figures.`, number of seeds)."""


def commands() -> Iterator[list[str]]:
    """Yield the commands in the order in which they run, each with one seed."""
    for seed in range(1, 1 + max(seeds for _, seeds in QUEUE)):
        yield from (command.format(seed=seed).split() for command, seeds in QUEUE if seed <= seeds)


def main() -> int:
    script_parser(__doc__).parse_args()
    failed = []
    for module, *words in commands():
        print(module, *words, flush=True)
        if subprocess.run([sys.executable, "-m", f"figures.{module}", *words], cwd=ROOT, check=False).returncode:
            failed.append(f"{module} {' '.join(words)}")
    print(f"failed: {failed}" if failed else "all experiments are complete", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
