"""What a second core brings: figures/data/speedup.csv.

    python figures/measure_speedup.py

Two workers against the fastest single process (one shard a minibatch) and against two separate runs of it, which are
what the two cores give together to who shares nothing. The contenders of a job run throughout and take turns. On a
quiet machine.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from pathlib import Path
from statistics import median

from measure_topologies import NETWORK, write
from provenance import DATA
from turns import started

JOBS = {
    "A": "--env HalfCheetah-v5 --num-envs 16",
    "A with 64 environments": "--env HalfCheetah-v5 --num-envs 64",
    "B": "--env CartPole-v1 --num-envs 64",
}


def row(job: str, count: int, seconds: float) -> dict[str, object]:
    """Medians of `count` turns, and the lowest and highest efficiency."""
    flags = [*NETWORK, *shlex.split(JOBS[job])]
    one = [*flags, "--workers", "0", "--grad-shards", "1"]
    contenders = {"one": [one], "separate": [one, one], "two": [[*flags, "--workers", "2", "--grad-shards", "2"]]}
    with tempfile.TemporaryDirectory() as directory, started(contenders, Path(directory)) as running:
        turns = [{name: contender.turn(seconds) for name, contender in running.items()} for _ in range(count)]
    efficiencies = [turn["two"] / turn["separate"] for turn in turns]
    rates = {
        "one_process": median(turn["one"] for turn in turns),
        "separate_runs": median(turn["separate"] for turn in turns),
        "two_workers": median(turn["two"] for turn in turns),
    }
    ratios = {
        "speedup": median(turn["two"] / turn["one"] for turn in turns),
        "efficiency": median(efficiencies),
        "lowest": min(efficiencies),
        "highest": max(efficiencies),
    }
    rounded = {name: round(rate) for name, rate in rates.items()}
    return {"job": job} | rounded | {name: f"{ratio:.3f}" for name, ratio in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    options = parser.parse_args()
    rows = []
    for job in JOBS:
        rows.append(row(job, options.turns, options.seconds))
        print(rows[-1], flush=True)
    write(DATA / "speedup.csv", rows, f"Steps per second; medians of {options.turns} turns of {options.seconds:g} s.")


if __name__ == "__main__":
    main()
