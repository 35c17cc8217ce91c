"""`python -m shmppo.bench topologies [flags of train]`: one learner, workers that share its gradients, or ranks.

The same total batch, on as many processes each: central (the learner computes every gradient), sharded (a synchronous
parameter server in shared memory: workers compute shards, the learner adds and steps) and decentralized (ranks, each of
which samples and learns from its part of the environments, and an all-reduce per minibatch; no server).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.bench.measured_run import WARM_UP, JobOptions, MeasuredRun, measured_run
from shmppo.config.options import require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import inspect_task
from shmppo.plotting.curves import read_columns
from shmppo.ppo.learner import arena_fields
from shmppo.utils.machine import usable_cores
from shmppo.utils.phase_timer import COMMUNICATION, LEARNING, SAMPLING

SPLIT = {"sampling": SAMPLING, "optimization": LEARNING, "communication": COMMUNICATION, "other": ("other",)}


@dataclass(frozen=True)
class Topologies(JobOptions):
    """Central, sharded and decentralized learning on the same total batch; --num-envs is that of all together."""

    processes: int | None = None
    """Processes of each topology: workers, or ranks that sample by themselves. None: one per core."""
    iterations: int = 23
    """Iterations of each run, the first 3 of which are not counted."""
    json: bool = False
    """Print one JSON object."""


def decentralized_run(config: TrainConfig, ranks: int, iterations: int) -> MeasuredRun:
    """As `bench_run.measured_run`, by several ranks on this machine, started by torchrun; rank 0's numbers.

    Args:
        config: of one rank.
    """
    steps = iterations * config.batch_steps * ranks
    with tempfile.TemporaryDirectory() as directory:
        file, run_dir = Path(directory) / "config.json", Path(directory) / "run"
        config = dataclasses.replace(config, total_steps=steps, quiet=True)
        file.write_text(json.dumps({"config": config.to_json()}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "shmppo.train", "--config", str(file), "--run-dir", str(run_dir)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        require(result.returncode == 0, f"the ranks failed: {result.stderr.strip()}")
        return MeasuredRun(
            json.loads((run_dir / "summary.json").read_text()), read_columns(run_dir / "metrics.csv"), {}
        )


def bytes_moved(config: TrainConfig, topology: str, processes: int) -> int:
    """Bytes per iteration that one process writes for another to read, by the sizes of what is exchanged.

    config: of one learner. Rollouts and shards' gradients go to the learner, weights back; each rank writes its
    gradient for all others (on one machine; a ring between machines moves 2 (R − 1) gradients in all).
    """
    fields = {field.name: field for field in arena_fields(config, inspect_task(config))}
    rollout = sum(field.bytes for field in fields.values() if field.writer.startswith("worker, own col"))
    weights, updates = fields["weights"].bytes, config.epochs * config.minibatches
    if topology == "decentralized":
        return updates * processes * weights
    if topology == "sharded":  # the learner is one of the processes that compute
        others = config.shards - config.shards // processes
        return rollout + updates * (others + processes - 1) * weights
    return rollout + processes * weights


def topologies(options: Topologies) -> list[dict[str, Any]]:
    """One row per topology.

    Returns:
        steps_per_second; speed-up over one process and efficiency, the speed-up per process; seconds of an iteration
        by part (medians); allreduce_seconds, what of them is spent between ranks; bytes moved in an iteration.
    """
    count = options.processes or usable_cores()
    require(count >= 2, f"--processes is {count}; take 2 or more")
    require(
        options.num_envs % count == 0,
        f"--num-envs {options.num_envs} cannot be dealt out evenly to {count} ranks; choose a multiple",
    )
    alone = measured_run(options.config(workers=0), options.iterations)
    own = options.config(workers=0, num_envs=options.num_envs // count)
    runs = {
        "one process": (1, options.config(workers=0), alone),
        "central": _measured(options, count, "central"),
        "sharded": _measured(options, count, "sharded"),
        "decentralized": (count, own, decentralized_run(own, count, options.iterations)),
    }
    single = alone.median("steps_per_second")
    return [_row(name, processes, config, run, single) for name, (processes, config, run) in runs.items()]


def _measured(options: Topologies, count: int, learning: str) -> tuple[int, TrainConfig, MeasuredRun]:
    config = options.config(workers=count, learning=learning)
    return count, config, measured_run(config, options.iterations)


def _row(name: str, processes: int, config: TrainConfig, run: MeasuredRun, single: float) -> dict[str, Any]:
    rate = run.median("steps_per_second")
    parts = {
        part: float(np.median(np.sum([run.columns[f"{phase}_seconds"][WARM_UP:] for phase in phases], axis=0)))
        for part, phases in SPLIT.items()
    }
    return {
        "topology": name,
        "processes": processes,
        "steps_per_second": rate,
        "speedup": rate / single,
        "efficiency": rate / single / processes,
        **{f"{part}_seconds": seconds for part, seconds in parts.items()},
        "allreduce_seconds": run.median("allreduce_seconds"),
        "bytes_moved": 0 if processes == 1 else bytes_moved(config, name, processes),
    }


def report(options: Topologies) -> list[dict[str, Any]]:
    """Measure and print."""
    rows = topologies(options)
    if options.json:
        print(json.dumps(rows))
        return rows
    print(
        "topology        processes  steps/s  speed-up  efficiency  ms: sampling  optimization  communication   MB moved"
    )
    for row in rows:
        parts = [row[f"{part}_seconds"] * 1e3 for part in ("sampling", "optimization", "communication")]
        print(
            f"{row['topology']:<16}{row['processes']:9}{row['steps_per_second']:9,.0f}{row['speedup']:10.2f}"
            f"{row['efficiency']:12.2f}{parts[0]:14.1f}{parts[1]:14.1f}{parts[2]:15.1f}{row['bytes_moved'] / 1e6:11.1f}"
        )
    return rows
