"""One process, two separate runs, and two processes that share a run, three ways: figures/data/topologies.csv.

    python figures/measure_topologies.py

Task A on one total batch. All contenders run throughout and take turns of a few seconds (topologies-turns.csv), so that
each ratio is of one moment of the machine. Two separate runs are the ceiling: what the two cores give together to who
shares nothing. `python -m shmppo.bench topologies` is the same without turns. On a quiet machine.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from provenance import DATA, record
from turns import Contender, started

from shmppo.bench.measured_run import WARM_UP
from shmppo.bench.topologies import SPLIT

NETWORK = shlex.split(
    "--rollout-steps 128 --encoder-sizes 128 --hidden-size 128 --epochs 4 --minibatches 4 "
    "--seq-len 16 --total-steps 1000000000 --worker-timeout 3600 --rank-timeout 3600"
)
TASK = ["--env", "HalfCheetah-v5", *NETWORK]
ONE = [*TASK, "--num-envs", "16", "--workers", "0", "--grad-shards", "1"]  # one shard is faster than two
TWO = [*TASK, "--num-envs", "16", "--workers", "2"]
RANK = [*TASK, "--num-envs", "8", "--workers", "0"]
TOPOLOGIES = {
    "one process": [ONE],
    "separate runs": [ONE, ONE],
    "central": [[*TWO, "--learning", "central"]],
    "sharded": [TWO],
    "decentralized": [RANK, RANK],
}


def row(name: str, contender: Contender, turns: list[dict[str, float]]) -> dict[str, object]:
    """A topology's line: medians over the turns of its rate and ratios, over iterations of its parts in seconds."""
    columns = contender.columns()
    parts = {
        f"{part}_seconds": np.median(np.sum([columns[f"{phase}_seconds"][WARM_UP:] for phase in phases], axis=0))
        for part, phases in SPLIT.items()
    }
    numbers = {
        "steps_per_second": median(turn[name] for turn in turns),
        "speedup": median(turn[name] / turn["one process"] for turn in turns),
        "of_separate_runs": median(turn[name] / turn["separate runs"] for turn in turns),
        **parts,
    }
    return {"topology": name} | {key: f"{number:.5g}" for key, number in numbers.items()}


def write(path: Path, rows: list[dict[str, object]], note: str) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    record(path, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    options = parser.parse_args()
    turns = []
    with (
        tempfile.TemporaryDirectory() as directory,
        started(TOPOLOGIES, Path(directory), ranks=["decentralized"]) as running,
    ):
        for _ in range(options.turns):
            turns.append({name: contender.turn(options.seconds) for name, contender in running.items()})
            print({name: round(rate) for name, rate in turns[-1].items()}, flush=True)
        rows = [row(name, contender, turns) for name, contender in running.items()]
    note = f"Medians of {options.turns} turns of {options.seconds:g} s."
    write(DATA / "topologies.csv", rows, note)
    rounded: list[dict[str, object]] = [{name: round(rate) for name, rate in turn.items()} for turn in turns]
    write(DATA / "topologies-turns.csv", rounded, "Steps per second; a row is one moment of the machine.")
    print((DATA / "topologies.csv").read_text(), end="")


if __name__ == "__main__":
    main()
