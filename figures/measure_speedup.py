"""What a second core brings, for jobs of several sizes: figures/data/speedup.csv.

    python figures/measure_speedup.py

Two workers against the fastest single process and against two separate runs of it, which are what the two cores give
together to who shares nothing. First some turns find the fastest number of shards, for one process and for two workers.
The contenders run throughout and take turns. On a quiet machine.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from measure_topologies import NETWORK, write
from provenance import DATA
from turns import started

JOBS = {
    "A": "--env HalfCheetah-v5 --num-envs 16",
    "A with 64 environments": "--env HalfCheetah-v5 --num-envs 64",
    "A with 64 environments and LSTM 256": "--env HalfCheetah-v5 --num-envs 64 --hidden-size 256",
    "A with Humanoid-v5": "--env Humanoid-v5 --num-envs 16",
    "B": "--env CartPole-v1 --num-envs 64",
}
SHARDS = (1, 2, 4, 8)
TRIALS = 3
"""Turns to find the fastest number of shards with."""


def turns_of(contenders: Mapping[str, Sequence[Sequence[str]]], count: int, seconds: float) -> dict[str, list[float]]:
    """Steps per second of each contender, turn after turn."""
    with tempfile.TemporaryDirectory() as directory, started(contenders, Path(directory)) as running:
        turns = [{name: contender.turn(seconds) for name, contender in running.items()} for _ in range(count)]
    return {name: [turn[name] for turn in turns] for name in contenders}


def fastest(flags: Sequence[str], least: int, seconds: float) -> list[str]:
    """The flags with the number of shards that made most steps per second, of those from `least` on."""
    contenders = {str(shards): [[*flags, "--grad-shards", str(shards)]] for shards in SHARDS if shards >= least}
    rates = turns_of(contenders, TRIALS, seconds)
    return [*flags, "--grad-shards", max(rates, key=lambda shards: median(rates[shards]))]


def row(job: str, count: int, seconds: float) -> dict[str, object]:
    """Medians of `count` turns, and the lowest and highest efficiency."""
    flags = [*NETWORK, *shlex.split(JOBS[job])]
    one = fastest([*flags, "--workers", "0"], 1, seconds)
    two = fastest([*flags, "--workers", "2"], 2, seconds)
    rates = turns_of({"one": [one], "separate": [one, one], "two": [two]}, count, seconds)
    efficiencies = [ours / both for ours, both in zip(rates["two"], rates["separate"], strict=True)]
    speedups = [ours / alone for ours, alone in zip(rates["two"], rates["one"], strict=True)]
    ratios = {
        "speedup": median(speedups),
        "efficiency": median(efficiencies),
        "lowest": min(efficiencies),
        "highest": max(efficiencies),
    }
    return {
        "job": job,
        "shards_of_one": one[-1],
        "shards_of_two": two[-1],
        "one_process": round(median(rates["one"])),
        "separate_runs": round(median(rates["separate"])),
        "two_workers": round(median(rates["two"])),
    } | {name: f"{ratio:.3f}" for name, ratio in ratios.items()}


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
