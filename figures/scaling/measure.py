"""Measure the speed over the number of workers.

    python -m figures.scaling.measure workers
    python -m figures.scaling.measure sleeping
    python -m figures.scaling.measure target
    python -m figures.scaling.measure jobs
    python -m figures.scaling.measure load
    python -m figures.scaling.measure gpu
    python -m figures.scaling.measure gpu --check

workers: task A with 16 and with 64 environments, by `python -m shmppo.bench scaling` with 1 to 16 workers. Writes
scaling.csv.

sleeping: 64 environments that sleep for 2 ms per step, with 1 to 32 workers. Workers that sleep can share a core.
Writes sleeping.csv.

target: two tasks with 1, 2, and 4 workers. Writes target.csv, with the steps at which the learning curve of the first
seed first reaches the target as the mean return of 100 episodes, and the seconds for them. The steps are the same for
each number of workers, because the weights are.

jobs: what a second core brings, for jobs of several sizes. For each job, a few slices first find the fastest number of
gradient shards, for one process and for two workers. Then the run with two workers is compared with the fastest single
process, and with two separate single-process runs. These share nothing, so their combined rate is the limit for two
cores. Writes jobs.csv.

load: task A with 0, 1, and 2 workers beside busy processes. Writes load.csv.

gpu: sharded learning on all cores, and the update on the GPU. Needs CUDA and ale-py. Writes gpu.csv; with --check only
gpu_check.csv (`gpu_check`).

Runs that are compared are interleaved. Measure on a machine without other load.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from figures.common.command_line import script_parser
from figures.common.interleaved import add_slice_flags, interleaved_rates, spread
from figures.common.jobs import ENDLESS, TASK_A, TASK_B
from figures.common.paths import FIGURES, ROOT
from figures.common.tables import read_rows, write_rows
from figures.scaling import gpu_check
from shmppo.config.checks import flags_with_values
from shmppo.config.presets import PRESETS

FOLDER = FIGURES / "scaling"
REPETITIONS = 3
STRONG = {"modes": "strong", "repetitions": REPETITIONS}
INTERLEAVED = f"Medians of {REPETITIONS} interleaved runs."
WORKERS = {"workers": (1, 2, 4, 8, 16)}
SLEEPING = {
    "env": "figures.ranks.sleeping:make", "num_envs": 64, "rollout_steps": 64, "minibatches": 4, "hidden_size": 64,
    "workers": (1, 2, 4, 8, 16, 32), "learning": "sharded",
}  # fmt: skip
JOBS = {
    "A": TASK_A,
    "A with 64 environments": TASK_A | {"num_envs": 64},
    "A with 64 environments and LSTM 256": TASK_A | {"num_envs": 64, "hidden_size": 256},
    "A with Humanoid-v5": TASK_A | {"env": "Humanoid-v5"},
    "B": TASK_B,
}
PONG = PRESETS["ALE/Pong-v5"] | {"num_envs": 32}
GPU_JOBS = {
    "A with 64 environments and LSTM 512": TASK_A | {"num_envs": 64, "encoder_sizes": (512,), "hidden_size": 512},
    "Pong with 32 environments": PONG,
}
TARGETS = {"halfcheetah_lstm-s1": (TASK_A, 1_500.0), "pong-s1": (PRESETS["ALE/Pong-v5"], 15.0)}
"""Learning curve in figures/returns -> (fields of the run, target)."""
DEVICES = {"cpu": {"learning": "sharded"}, "cuda": {"learning": "central", "device": "cuda"}}
SHARDS = (1, 2, 4, 8)
TRIAL_SLICES = 3  # for each number of shards


def bench_scaling(fields: dict[str, Any]) -> list[dict[str, str]]:
    """Return the table of `bench scaling`, with medians of interleaved runs."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "scaling.csv"
        flags = flags_with_values(STRONG | fields | {"out": str(out)})
        subprocess.run([sys.executable, "-m", "shmppo.bench", "scaling", *flags], cwd=ROOT, check=True)
        return read_rows(out)


def measure_workers(options: argparse.Namespace) -> None:
    """Measure task A with two numbers of environments."""
    rows = [row for envs in (16, 64) for row in bench_scaling(TASK_A | WORKERS | {"num_envs": envs})]
    write_rows(FOLDER / "scaling.csv", rows, INTERLEAVED)


def measure_sleeping(options: argparse.Namespace) -> None:
    """Measure environments that sleep."""
    write_rows(FOLDER / "sleeping.csv", bench_scaling(SLEEPING), INTERLEAVED)


def measure_target(options: argparse.Namespace) -> None:
    """Write a row for each task and number of workers, with the time in which a run reaches the target."""
    rows: list[dict[str, Any]] = []
    for curve, (fields, target) in TARGETS.items():
        points = read_rows(FIGURES / "returns" / "curves" / f"{curve}.csv")
        steps = next(float(row["env_steps"]) for row in points if float(row["return_mean_100"]) >= target)
        for row in bench_scaling(fields | {"workers": (1, 2, 4), "learning": "sharded"}):
            rate = {name: row[name] for name in ("workers", "steps_per_second", "speedup", "efficiency")}
            seconds = steps / float(row["steps_per_second"])
            rows.append(
                {"env": fields["env"], "target": target, "steps": int(steps), **rate, "seconds": round(seconds)}
            )
    write_rows(FOLDER / "target.csv", rows, INTERLEAVED)


def fastest_shards(command: Sequence[str], minimum: int, seconds: float) -> str:
    """Return the number of shards with the highest rate, out of those from `minimum` on."""
    commands = {str(shards): [[*command, "--grad-shards", str(shards)]] for shards in SHARDS if shards >= minimum}
    rates = interleaved_rates(commands, TRIAL_SLICES, seconds)
    return max(commands, key=lambda shards: median(rate[shards] for rate in rates))


def measure_jobs(options: argparse.Namespace) -> None:
    """Write a row per job: medians over the slices, and the lowest and highest efficiency."""
    rows: list[dict[str, Any]] = []
    for job, fields in JOBS.items():
        command = flags_with_values(fields | ENDLESS)
        one, two = [*command, "--workers", "0"], [*command, "--workers", "2"]
        one_shards, two_shards = fastest_shards(one, 1, options.seconds), fastest_shards(two, 2, options.seconds)
        one += ["--grad-shards", one_shards]
        two += ["--grad-shards", two_shards]
        rates = interleaved_rates({"one": [one], "separate": [one, one], "two": [two]}, options.slices, options.seconds)
        efficiency = spread(rates, "two", "separate")
        row = {"job": job, "shards_of_one": one_shards, "shards_of_two": two_shards}
        names = {"one_process": "one", "separate_runs": "separate", "two_workers": "two"}
        row |= {column: round(median(rate[name] for rate in rates)) for column, name in names.items()}
        row |= {"speedup": spread(rates, "two", "one")["ratio"], "efficiency": efficiency.pop("ratio"), **efficiency}
        rows.append(row)
        print(row, flush=True)
    note = f"Steps per second; medians of {options.slices} slices of {options.seconds:g} s."
    write_rows(FOLDER / "jobs.csv", rows, note)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that need a core each and are pinned to none."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_load(options: argparse.Namespace) -> None:
    """Write a row per number of busy processes: the median rates, and the ratio of two workers to none."""
    commands = {str(w): [flags_with_values(TASK_A | ENDLESS | {"workers": w, "grad_shards": 2})] for w in (0, 1, 2)}
    rows: list[dict[str, Any]] = []
    for busy in (0, 1, 2):
        with busy_processes(busy):
            rates = interleaved_rates(commands, options.slices, options.seconds)
        medians = {f"workers_{w}": round(median(rate[w] for rate in rates)) for w in commands}
        rows.append({"busy": busy, **medians, **spread(rates, "2", "0"), "rounds": len(rates)})
        print(rows[-1], flush=True)
    write_rows(FOLDER / "load.csv", rows, "Steps per second; medians over the rounds.")


def measure_gpu(options: argparse.Namespace) -> None:
    """Run `bench throughput` on both devices, one after the other; write a row per job with the medians."""
    if options.check:
        gpu_check.main(options.device)
        return
    rows: list[dict[str, Any]] = []
    for job, fields in GPU_JOBS.items():
        rates: dict[str, list[float]] = {device: [] for device in DEVICES}
        for _ in range(REPETITIONS):
            for device, where in DEVICES.items():
                arguments = ["--json", "--no-roofline", "--iterations", "7", *flags_with_values(fields | where)]
                command = [sys.executable, "-m", "shmppo.bench", "throughput", *arguments]
                output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
                rates[device].append(json.loads(output)["steps_per_second"])
        ratios = [gpu / cpu for gpu, cpu in zip(rates["cuda"], rates["cpu"], strict=True)]
        medians = {device: round(median(of)) for device, of in rates.items()}
        rows.append({"job": job, **medians, "ratio": round(median(ratios), 2)})
    write_rows(FOLDER / "gpu.csv", rows, f"Steps per second; medians of {REPETITIONS} interleaved runs.")


PARTS = {
    "workers": measure_workers, "sleeping": measure_sleeping, "target": measure_target, "jobs": measure_jobs,
    "load": measure_load, "gpu": measure_gpu,
}  # fmt: skip


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--check", action="store_true", help="with gpu: check the device instead of measuring it")
    parser.add_argument("--device", default="cuda", help="with gpu --check")
    add_slice_flags(parser, slices=9, seconds=6.0)
    options = parser.parse_args()
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
