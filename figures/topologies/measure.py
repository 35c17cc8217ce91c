"""Compare central, sharded, and decentralized learning on two cores, for task A with the same total batch.

    python -m figures.topologies.measure

One process is the baseline. Two separate runs share nothing, so their combined rate is the limit for two cores. All
runs are interleaved, so each ratio compares slices that follow each other directly. `python -m shmppo.bench topologies`
measures the same without interleaving. Run this on a machine without other load. Writes topologies.csv, and the rates
of all slices to topologies-slices.csv.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from figures.common.command_line import script_parser
from figures.common.interleaved import RunGroup, add_slice_flags, rounds, started
from figures.common.jobs import ENDLESS, TASK_A, flags
from figures.common.tables import write_rows
from shmppo.bench.measured_run import WARM_UP
from shmppo.bench.topologies import SPLIT

TABLE = Path(__file__).with_name("topologies.csv")
SLICES = TABLE.with_name("topologies-slices.csv")
TASK = TASK_A | ENDLESS
ONE = flags(TASK | {"workers": 0, "grad_shards": 1})  # one shard is faster than two in a single process
RANK = flags(TASK | {"workers": 0, "num_envs": 8})
TOPOLOGIES = {
    "one process": [ONE],
    "separate runs": [ONE, ONE],
    "central": [flags(TASK | {"workers": 2, "learning": "central"})],
    "sharded": [flags(TASK | {"workers": 2})],
    "decentralized": [RANK, RANK],
}


def row(name: str, group: RunGroup, measured: list[dict[str, float]]) -> dict[str, Any]:
    """Return the row of a topology.

    Args:
        name: of the topology.
        group: its runs; the seconds of each part are medians over the iterations.
        measured: steps per second of all topologies in each round; the rate and the ratios are medians over the rounds.
    """
    columns = group.columns()
    parts = {
        f"{part}_seconds": np.median(np.sum([columns[f"{phase}_seconds"][WARM_UP:] for phase in phases], axis=0))
        for part, phases in SPLIT.items()
    }
    numbers = {
        "steps_per_second": median(rates[name] for rates in measured),
        "speedup": median(rates[name] / rates["one process"] for rates in measured),
        "of_separate_runs": median(rates[name] / rates["separate runs"] for rates in measured),
        **parts,
    }
    return {"topology": name} | {key: f"{number:.5g}" for key, number in numbers.items()}


def main() -> None:
    parser = script_parser(__doc__)
    add_slice_flags(parser, slices=15, seconds=4.0)
    options = parser.parse_args()
    measured: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        started(TOPOLOGIES, Path(directory), ranks=["decentralized"]) as groups,
    ):
        for rates in rounds(groups, options.slices, options.seconds):
            measured.append(rates)
            print({name: round(rate) for name, rate in rates.items()}, flush=True)
        rows = [row(name, group, measured) for name, group in groups.items()]
    write_rows(TABLE, rows, f"Medians of {options.slices} slices of {options.seconds:g} s.")
    rounded = [{name: round(rate) for name, rate in rates.items()} for rates in measured]
    write_rows(SLICES, rounded, "Steps per second. The slices of a row follow each other directly.")
    print(TABLE.read_text(), end="")


if __name__ == "__main__":
    main()
