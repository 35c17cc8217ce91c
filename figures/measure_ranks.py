"""Decentralized learning, measured: figures/data/ranks_PART.csv, one table per part.

    python figures/measure_ranks.py communication     # share of an iteration on task A, two ranks
    python figures/measure_ranks.py preemption        # four ranks, one of them five times slower, with and without
    python figures/measure_ranks.py model             # predicted against measured for 1, 2 and 4 ranks, then up to 256

Every rank is a process of its own under torchrun, and runs the trainer itself. `communication` notes when each exchange
begins and ends on each rank; what counts is the time from the arrival of the last rank on.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from provenance import DATA, HERE, record

TASK_A = (
    "--env HalfCheetah-v5 --num-envs 16 --rollout-steps 128 --encoder-sizes 128 --hidden-size 128 --epochs 4 "
    "--minibatches 4 --seq-len 16"
)
SLEEPY = (
    "--env rank_environments:make --hide-obs 1 3 --num-envs 4 --rollout-steps 128 --minibatches 4 --epochs 4 "
    "--hidden-size 64"
)
WARM_UP = 3
STRAGGLING = 23  # iterations of the run that waits for its straggler: enough for its rate, too few to learn
MOST_RANKS = 256
UPDATES = 16  # minibatches of an iteration, 4 epochs of 4
SIZES = (1_000, 10_000, 135_000, 500_000)  # floats


def torchrun(ranks: int, arguments: list[str], **environment: str) -> str:
    """Run ranks on this machine; returns what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(HERE), str(HERE.parent)])
    env = os.environ | {"PYTHONPATH": paths} | environment
    result = subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr)
    return result.stdout


def trained(ranks: int, flags: str, iterations: int, directory: Path, *, stamps: bool = False) -> dict[str, np.ndarray]:
    """Columns of rank 0's metrics.csv after the warm-up; with `stamps`, also those of every exchange by rank."""
    steps = ranks * iterations * 128 * int(flags.split("--num-envs ")[1].split()[0])
    program = [str(HERE / "measure_ranks.py"), "--as-rank"] if stamps else ["-m", "shmppo.train"]
    command = [*program, *flags.split(), "--workers", "0", "--quiet", "--total-steps", str(steps)]
    torchrun(ranks, [*command, "--run-dir", str(directory)], STAMPS=str(directory))
    with open(directory / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))[WARM_UP:]
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def as_rank() -> int:
    """One rank that notes when its exchanges begin and end, then trains as its command line says."""
    from shmppo.parallel.process_group import ProcessGroup
    from shmppo.runs.trainer import main

    exchange, noted = ProcessGroup._exchange, []

    @contextmanager
    def noting(self: ProcessGroup, size: int) -> Iterator[None]:
        began = time.monotonic()
        with exchange(self, size):
            yield
        noted.append((began, time.monotonic(), size))

    ProcessGroup._exchange = noting  # type: ignore[method-assign]
    sys.argv = ["train", *sys.argv[2:]]
    code = main()
    np.save(Path(os.environ["STAMPS"]) / f"stamps-{os.environ['RANK']}.npy", np.array(noted))
    return code


def communication(iterations: int, ranks: int = 2) -> list[dict[str, Any]]:
    """Seconds of exchanges from the arrival of the last rank, as a share of the iterations they lie in."""
    with tempfile.TemporaryDirectory() as directory:
        columns = trained(ranks, TASK_A, iterations, Path(directory) / "run", stamps=True)
        files = [Path(directory) / "run" / f"stamps-{rank}.npy" for rank in range(ranks)]
        began, ended, sizes = np.moveaxis(np.stack([np.load(file) for file in files]), -1, 0)  # [R, exchanges]
    moving = (ended - began.max(axis=0)).mean(axis=0)  # after the last one has come
    waiting = (began.max(axis=0) - began).mean(axis=0)
    large = sizes[0] > 100_000
    seconds = columns["iteration"].size + WARM_UP
    iteration = float(np.median(columns["env_steps"][0] / columns["iteration"][0] / columns["steps_per_second"]))
    return [
        {
            "ranks": ranks,
            "iteration_seconds": iteration,
            "moving_seconds": float(moving.sum()) / seconds,
            "waiting_seconds": float(waiting.sum()) / seconds,
            "share": float(moving.sum()) / seconds / iteration,
            "gradient_median_seconds": float(np.median(moving[large])),
            "exchanges": len(moving) / seconds,
        }
    ]


def preemption(iterations: int, ranks: int = 4) -> list[dict[str, Any]]:
    """Steps per second with a straggler, with and without pre-emption; with it also the return after `iterations`."""
    rows = []
    for fraction in (None, 0.6):
        flags = SLEEPY + " --env-kwargs seconds=0.002 straggler=true"
        flags += "" if fraction is None else f" --preempt-fraction {fraction}"
        with tempfile.TemporaryDirectory() as directory:
            columns = trained(ranks, flags, iterations if fraction else STRAGGLING, Path(directory) / "run")
        rows.append(
            {
                "preempt_fraction": fraction or "",
                "steps_per_second": float(np.median(columns["steps_per_second"])),
                "preempted_share": float(columns["preempted_steps"].mean() / (ranks * 512)),
                "return_mean_100": float(columns["return_mean_100"][-1]),
                "env_steps": float(columns["env_steps"][-1]),
            }
        )
    return rows


def all_reduce_times() -> None:
    """As a rank: print the median seconds of an all-reduce of each of SIZES, by `ProcessGroup.sum`."""
    import torch

    from shmppo.parallel.process_group import connected

    torch.set_num_threads(1)
    with connected(60) as ranks:
        medians = []
        for size in SIZES:
            tensor, times = torch.zeros(size), []
            for _ in range(200):
                ranks.gather(np.zeros(1))  # so that they begin together
                ranks.seconds = 0.0
                ranks.sum(tensor)
                times.append(ranks.seconds)
            medians.append(float(np.median(times)))
        if ranks.rank == 0:
            print(json.dumps(medians))


def ring_seconds(ranks: np.ndarray | int, size: float, hop: float, per_byte: float) -> Any:
    """2 (R − 1) messages one after the other, each of 1/R of the bytes: gloo's ring."""
    return 2 * (np.asarray(ranks) - 1) * (hop + per_byte * size / np.asarray(ranks))


def gradient_bytes(run_dir: Path) -> int:
    """Bytes of a run's gradient."""
    from shmppo.runs.checkpoint import load_newest_checkpoint

    return sum(4 * tensor.numel() for tensor in load_newest_checkpoint(run_dir)["learner"]["model"].values())


def model(iterations: int) -> list[dict[str, Any]]:
    """Seconds of an iteration of the sleeping task: of one rank plus what the ring adds, against measured ones."""
    equations, seconds = [], []
    for ranks in (2, 4):
        times = json.loads(torchrun(ranks, [str(HERE / "measure_ranks.py"), "--all-reduce"]).splitlines()[-1])
        for size, median in zip(SIZES, times, strict=True):
            equations.append([2 * (ranks - 1), 2 * (ranks - 1) * 4 * size / ranks])
            seconds.append(median)
    weights = 1 / np.array(seconds)  # so that small ones count as much as large ones
    hop, per_byte = np.linalg.lstsq(np.array(equations) * weights[:, None], np.ones(len(seconds)), rcond=None)[0]
    alone, size, rows = 0.0, 0, []
    for ranks in (1, 2, 4, *(2**k for k in range(3, MOST_RANKS.bit_length()))):
        measured = float("nan")
        if ranks <= 4:
            with tempfile.TemporaryDirectory() as directory:
                flags = SLEEPY + " --env-kwargs seconds=0.002"
                columns = trained(ranks, flags, iterations, Path(directory) / "run")
                size = gradient_bytes(Path(directory) / "run")
            measured = float(np.median(512 * ranks / columns["steps_per_second"]))
            alone = measured if ranks == 1 else alone
        predicted = alone + UPDATES * float(ring_seconds(ranks, size, hop, per_byte))
        rows.append(
            {
                "ranks": ranks,
                "predicted_seconds": predicted,
                "measured_seconds": measured,
                "speedup": ranks * alone / predicted,
                "hop_seconds": float(hop),
                "seconds_per_byte": float(per_byte),
                "gradient_bytes": size,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("communication", "preemption", "model"))
    parser.add_argument("--iterations", type=int, default=43)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    measure = {"communication": communication, "preemption": preemption, "model": model}[options.part]
    rows = measure(options.iterations)
    path = options.out / f"ranks_{options.part}.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    record(path)
    print(path.read_text(), end="")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        sys.exit(as_rank())
    if sys.argv[1:2] == ["--all-reduce"]:
        all_reduce_times()
    else:
        main()
