"""Benchmark `python -m shmppo.bench topologies [flags of train]`: three ways to compute gradients on one machine.

All of them use the same total batch and the same number of processes.

- central: the learner computes all gradients.
- sharded: a synchronous parameter server in shared memory. The workers compute gradient shards. The learner adds them
  and makes the optimizer step.
- decentralized: ranks without a server. Each rank samples and learns from its part of the environments, with one
  all-reduce per minibatch.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shmppo.bench.measured_run import MeasuredRun, measured_run
from shmppo.bench.options import Topologies
from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.parallel.shared_buffers import OWN_ENVS, run_fields
from shmppo.plotting.curves import read_columns
from shmppo.utils.machine import usable_cores


def decentralized_run(config: TrainConfig, ranks: int, iterations: int) -> MeasuredRun:
    """Do the same as `measured_run` with several ranks on this machine, started by torchrun.

    Args:
        config: configuration of one rank.
        ranks: number of ranks.
        iterations: iterations to train.

    Returns:
        The measurements of rank 0.
    """
    steps = iterations * config.batch_steps * ranks
    with tempfile.TemporaryDirectory() as directory:
        file, run_dir = Path(directory) / "config.json", Path(directory) / "run"
        config = dataclasses.replace(config, total_steps=steps, quiet=True)
        file.write_text(json.dumps({"config": config.to_json()}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "shmppo.train", "--config", str(file), "--run-dir", str(run_dir)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        require(result.returncode == 0, f"the ranks of the decentralized run failed: {result.stderr.strip()}")
        return MeasuredRun(json.loads((run_dir / "summary.json").read_text()), read_columns(run_dir / "metrics.csv"))


def bytes_moved(config: TrainConfig, topology: str, processes: int) -> int:
    """Compute how many bytes per iteration a process writes and another process reads, from the sizes of the arrays.

    Workers send rollouts and gradient shards to the learner, which sends weights back. Each rank writes its gradient
    for all other ranks. This holds on one machine. Between machines, an all-reduce moves 2 (R − 1) gradients in total.

    Args:
        config: configuration of one learner.
        topology: "central", "sharded", or "decentralized".
        processes: number of workers or ranks.
    """
    task = inspect_task(config)
    fields = run_fields(config, task.observation, task.distribution)
    rollout = sum(field.bytes for field in fields if field.writer == OWN_ENVS)
    weights = next(field.bytes for field in fields if field.path == "published.weights")
    updates = config.epochs * config.minibatches
    if topology == "decentralized":
        return updates * processes * weights
    if topology == "sharded":  # the learner computes its own part of the shards
        others = config.shards - config.shards // processes
        return rollout + updates * (others + processes - 1) * weights
    return rollout + processes * weights


def topologies(options: Topologies) -> list[dict[str, Any]]:
    """Measure all topologies, and one process for comparison.

    Returns:
        One row per topology. speedup: relative to one process. efficiency: speedup divided by the number of processes.
        sampling_seconds and so on: seconds per iteration by part, medians. allreduce_seconds: the part of them spent in
        all-reduces. bytes_moved: see `bytes_moved`.
    """
    count = options.processes or usable_cores()
    require(count >= 2, f"--processes is {count}; it must be at least 2")
    require(
        options.num_envs % count == 0,
        f"--num-envs is {options.num_envs}; it must be a multiple of the {count} ranks",
    )
    alone = measured_run(options.config(workers=0), options.iterations)
    own = options.config(workers=0, num_envs=options.num_envs // count)
    runs = {"one process": (1, options.config(workers=0), alone)}
    for learning in ("central", "sharded"):
        config = options.config(workers=count, learning=learning)
        runs[learning] = count, config, measured_run(config, options.iterations)
    runs["decentralized"] = count, own, decentralized_run(own, count, options.iterations)
    single = alone.median("steps_per_second")
    return [_row(name, processes, config, run, single) for name, (processes, config, run) in runs.items()]


def _row(name: str, processes: int, config: TrainConfig, run: MeasuredRun, single: float) -> dict[str, Any]:
    """Make a topology's row of the table. single: steps per second of one process."""
    rate = run.median("steps_per_second")
    parts = run.parts()
    parts["communication"] += parts.pop("waiting")
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
    """Measure and print; returns one row per topology."""
    rows = topologies(options)
    print(json.dumps(rows) if options.json else table(rows))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows for printing."""
    lines = [
        "topology        processes  steps/s  speed-up  efficiency  ms: sampling  optimization  communication   MB moved"
    ]
    for row in rows:
        parts = [row[f"{part}_seconds"] * 1e3 for part in ("sampling", "optimization", "communication")]
        lines.append(
            f"{row['topology']:<16}{row['processes']:9}{row['steps_per_second']:9,.0f}{row['speedup']:10.2f}"
            f"{row['efficiency']:12.2f}{parts[0]:14.1f}{parts[1]:14.1f}{parts[2]:15.1f}{row['bytes_moved'] / 1e6:11.1f}"
        )
    return "\n".join(lines)
