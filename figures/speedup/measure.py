"""Measure what a second core brings, for jobs of several sizes.

    python -m figures.speedup.measure

For each job, a few slices first find the fastest number of gradient shards, for one process and for two workers. Then
the run with two workers is compared with the fastest single process, and with two separate single-process runs. The two
separate runs share nothing, so their combined rate is the limit for two cores. All runs are interleaved. Run this on a
machine without other load. Writes speedup.csv.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from figures.common.command_line import script_parser
from figures.common.interleaved import add_slice_flags, rounds, started
from figures.common.jobs import ENDLESS, TASK_A, TASK_B, flags
from figures.common.tables import write_rows

TABLE = Path(__file__).with_name("speedup.csv")
JOBS = {
    "A": TASK_A,
    "A with 64 environments": TASK_A | {"num_envs": 64},
    "A with 64 environments and LSTM 256": TASK_A | {"num_envs": 64, "hidden_size": 256},
    "A with Humanoid-v5": TASK_A | {"env": "Humanoid-v5"},
    "B": TASK_B,
}
SHARDS = (1, 2, 4, 8)
TRIAL_SLICES = 3  # for each number of shards


def interleaved_rates(
    commands: Mapping[str, Sequence[Sequence[str]]], slices: int, seconds: float
) -> dict[str, list[float]]:
    """Run groups of runs interleaved; return the steps per second of each group, one number per slice."""
    with tempfile.TemporaryDirectory() as directory, started(commands, Path(directory)) as groups:
        measured = list(rounds(groups, slices, seconds))
    return {name: [rates[name] for rates in measured] for name in commands}


def fastest_shards(command: Sequence[str], minimum: int, seconds: float) -> str:
    """Return the number of shards with the highest rate, out of those from `minimum` on."""
    commands = {str(shards): [[*command, "--grad-shards", str(shards)]] for shards in SHARDS if shards >= minimum}
    rates = interleaved_rates(commands, TRIAL_SLICES, seconds)
    return max(rates, key=lambda shards: median(rates[shards]))


def measure(job: str, slices: int, seconds: float) -> dict[str, Any]:
    """Return the row of a job: medians over the slices, and the lowest and highest efficiency."""
    command = flags(JOBS[job] | ENDLESS)
    one, two = [*command, "--workers", "0"], [*command, "--workers", "2"]
    one_shards, two_shards = fastest_shards(one, 1, seconds), fastest_shards(two, 2, seconds)
    one += ["--grad-shards", one_shards]
    two += ["--grad-shards", two_shards]
    rates = interleaved_rates({"one": [one], "separate": [one, one], "two": [two]}, slices, seconds)
    efficiencies = [workers / separate for workers, separate in zip(rates["two"], rates["separate"], strict=True)]
    speedups = [workers / single for workers, single in zip(rates["two"], rates["one"], strict=True)]
    ratios = {
        "speedup": median(speedups),
        "efficiency": median(efficiencies),
        "lowest": min(efficiencies),
        "highest": max(efficiencies),
    }
    return {
        "job": job,
        "shards_of_one": one_shards,
        "shards_of_two": two_shards,
        "one_process": round(median(rates["one"])),
        "separate_runs": round(median(rates["separate"])),
        "two_workers": round(median(rates["two"])),
    } | {name: f"{ratio:.3f}" for name, ratio in ratios.items()}


def main() -> None:
    parser = script_parser(__doc__)
    add_slice_flags(parser, slices=9, seconds=6.0)
    options = parser.parse_args()
    rows = []
    for job in JOBS:
        rows.append(measure(job, options.slices, options.seconds))
        print(rows[-1], flush=True)
    write_rows(TABLE, rows, f"Steps per second; medians of {options.slices} slices of {options.seconds:g} s.")


if __name__ == "__main__":
    main()
