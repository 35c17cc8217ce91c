"""Measure training with several ranks on this machine.

    python -m figures.ranks.measure topologies
    python -m figures.ranks.measure speedup
    python -m figures.ranks.measure preemption

topologies: central, sharded, and decentralized learning on two cores, for task A with the same total batch. One process
is the baseline. Two separate runs share nothing, so their combined rate is the limit for two cores. All runs are
interleaved, so each ratio compares slices that follow each other directly. Measure on a machine without other load.
Writes ranks.csv.

speedup: 1, 2, and 4 ranks with the same work each, and the share of an iteration that rank 0 spends in collective
operations, including the wait for the other ranks. preemption: four ranks, one of them five times as slow as the
others, with and without --preempt-fraction. The environments of both sleep, so four ranks can share two cores. They
write speedup.csv and preemption.csv.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from figures.common.command_line import script_parser
from figures.common.interleaved import RunGroup, add_slice_flags, rounds, spread, started
from figures.common.jobs import ENDLESS, TASK_A
from figures.common.paths import FIGURES, ROOT
from figures.common.tables import write_rows
from shmppo.config.checks import flags_with_values
from shmppo.plotting.curves import read_columns
from shmppo.utils.phase_timer import COMMUNICATION, LEARNING, SAMPLING

FOLDER = FIGURES / "ranks"
WARM_UP = 3  # iterations at the start of each run that do not count
SPLIT = {"sampling": SAMPLING, "optimization": LEARNING, "communication": COMMUNICATION, "other": ("other",)}
"""Phases of each part of an iteration."""
# In a single process, one shard is faster than two.
ONE = flags_with_values(TASK_A | ENDLESS | {"workers": 0, "grad_shards": 1})
RANK = flags_with_values(TASK_A | ENDLESS | {"workers": 0, "num_envs": 8})
TOPOLOGIES = {
    "one process": [ONE],
    "separate runs": [ONE, ONE],
    "central": [flags_with_values(TASK_A | ENDLESS | {"workers": 2, "learning": "central"})],
    "sharded": [flags_with_values(TASK_A | ENDLESS | {"workers": 2})],
    "decentralized": [RANK, RANK],
}
SLEEPING: dict[str, Any] = {
    "env": "figures.ranks.sleeping:make", "hide_obs": (1, 3), "num_envs": 4, "rollout_steps": 128, "minibatches": 4,
    "epochs": 4, "hidden_size": 64,
}  # fmt: skip
BATCH_STEPS = 4 * 128
STRAGGLER_RANKS = 4
RATE_ITERATIONS = 23  # length of the run without preemption: enough to measure its rate, too short to learn


def measure_topologies(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per topology: the median rate and ratios, and the seconds of an iteration by part."""
    with started(TOPOLOGIES, ranks=["decentralized"]) as groups:
        rates = rounds(groups, options.slices, options.seconds)
        return [
            {
                "topology": name,
                "steps_per_second": round(median(rate[name] for rate in rates)),
                "speedup": spread(rates, name, "one process")["ratio"],
                "of_separate_runs": spread(rates, name, "separate runs")["ratio"],
                **split(group),
            }
            for name, group in groups.items()
        ]


def split(group: RunGroup) -> dict[str, str]:
    """Return the median seconds of an iteration by part."""
    columns = group.columns()
    seconds = {
        part: np.sum([columns[f"{phase}_seconds"][WARM_UP:] for phase in phases], axis=0)
        for part, phases in SPLIT.items()
    }
    return {f"{part}_seconds": f"{np.median(values):.5g}" for part, values in seconds.items()}


def train_ranks(ranks: int, fields: Mapping[str, Any], iterations: int) -> dict[str, np.ndarray]:
    """Train with several ranks under torchrun. Returns the columns of metrics.csv of rank 0, without the warm-up."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "shmppo.train", *flags_with_values(fields), "--workers", "0", "--quiet"]
        command += ["--run-dir", str(run_dir), "--total-steps", str(ranks * iterations * BATCH_STEPS)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(result.stderr)
        return {name: values[WARM_UP:] for name, values in read_columns(run_dir / "metrics.csv").items()}


def measure_speedup(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per number of ranks: the median rate, its ratio to one rank, and the share of collectives."""
    rows: list[dict[str, Any]] = []
    for ranks in (1, 2, 4):
        columns = train_ranks(ranks, SLEEPING, options.iterations)
        rate = float(np.median(columns["steps_per_second"]))
        seconds = ranks * BATCH_STEPS / columns["steps_per_second"]
        share = float(np.median(columns["allreduce_seconds"] / seconds))
        first = rows[0]["steps_per_second"] if rows else rate
        rows.append(
            {
                "ranks": ranks,
                "steps_per_second": round(rate, 1),
                "speedup": round(rate / first, 3),
                "collectives_share": round(share, 4),
            }
        )
    return rows


def measure_preemption(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row without and a row with preemption."""
    rows = []
    for fraction, iterations in ((None, RATE_ITERATIONS), (0.6, options.iterations)):
        fields = SLEEPING | {"env_kwargs": {"straggler": True}}
        fields |= {} if fraction is None else {"preempt_fraction": fraction}
        columns = train_ranks(STRAGGLER_RANKS, fields, iterations)
        share = columns["preempted_steps"].mean() / (STRAGGLER_RANKS * BATCH_STEPS)
        rows.append(
            {
                "preempt_fraction": "" if fraction is None else fraction,
                "steps_per_second": round(float(np.median(columns["steps_per_second"])), 1),
                "preempted_share": round(float(share), 4),
                "return_mean_100": round(float(columns["return_mean_100"][-1]), 2),
                "env_steps": int(columns["env_steps"][-1]),
            }
        )
    return rows


PARTS = {"topologies": measure_topologies, "speedup": measure_speedup, "preemption": measure_preemption}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--iterations", type=int, default=43, help="length of the runs of speedup and preemption")
    add_slice_flags(parser, slices=15, seconds=4.0)
    options = parser.parse_args()
    rows = PARTS[options.part](options)
    print(*rows, sep="\n")
    notes = {"topologies": f"Medians of {options.slices} slices of {options.seconds:g} s."}
    table = "ranks" if options.part == "topologies" else options.part
    write_rows(FOLDER / f"{table}.csv", rows, notes.get(options.part, "The environments sleep for 2 ms per step."))


if __name__ == "__main__":
    main()
