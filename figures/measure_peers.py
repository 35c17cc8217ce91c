"""Throughput beside other trainers, interleaved in one sitting: figures/data/peers.csv.

    python figures/measure_peers.py --task A --repetitions 3 \
        --peer "sb3-contrib RecurrentPPO=VENV/bin/python bench_sb3.py A dummy 1 16" \
        --peer "PufferLib 3.0, 2 threads=THREADS=2 VENV/bin/python bench_puffer.py A serial 1 16"

Each peer is a name and a shell command that prints a line with `sps=NUMBER`; each needs a virtual environment of its
own, so none is installed here. Ours is `python -m shmppo.bench throughput` of the same task with this interpreter.
Task A: HalfCheetah-v5, 16 environments × 128 steps, Linear(17, 128)-tanh-LSTM(128), 4 epochs × 4 minibatches,
sequences of 16. Task B: CartPole-v1, 64 environments, the same otherwise. Task A-envpool: A with EnvPool on both sides
(`peer_with_envpool.py`). 23 iterations, the first 3 not counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile

from provenance import DATA, record

NETWORK = "--hidden-size 128 --encoder-sizes 128 --epochs 4 --minibatches 4 --seq-len 16 --rollout-steps 128"
TASKS = {"A": f"--env HalfCheetah-v5 --num-envs 16 {NETWORK}", "B": f"--env CartPole-v1 --num-envs 64 {NETWORK}"}
TASKS["A-envpool"] = f"{TASKS['A']} --env-backend envpool"
OURS = {
    "shmppo, 2 workers": "--workers 2 --grad-shards 2",  # as many shards as workers: see the README on --grad-shards
    "shmppo, 1 process": "--workers 0 --grad-shards 1",
}
COLUMNS = ("task", "trainer", "steps_per_second", "lowest", "highest", "repetitions", "processor", "cores")


def ours(task: str, flags: str) -> float:
    command = [sys.executable, "-m", "shmppo.bench", "throughput", *TASKS[task].split(), *flags.split()]
    done = subprocess.run([*command, "--no-roofline", "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["steps_per_second"]


def theirs(command: str) -> float:
    with tempfile.TemporaryDirectory() as directory:  # some peers write to where they are started
        options = {"cwd": directory, "check": True, "capture_output": True, "text": True, "timeout": 600}
        done = subprocess.run(command, shell=True, **options)  # type: ignore[call-overload]
    found = re.findall(r"\bsps=([\d.]+)", done.stdout)
    if not found:
        raise SystemExit(f"no sps= in the output of: {command}")
    return float(found[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in options.peer)
    rates: dict[str, list[float]] = {name: [] for name in (*OURS, *peers)}
    for _ in range(options.repetitions):
        for name in rates:
            rates[name].append(ours(options.task, OURS[name]) if name in OURS else theirs(peers[name]))
            print(f"{options.task}  {name:<40}{rates[name][-1]:10,.0f}", flush=True)
    from shmppo.utils.machine import processor, usable_cores

    path = DATA / "peers.csv"
    others = []
    if path.exists():
        with open(path) as file:
            others = [row for row in csv.DictReader(file) if row["task"] != options.task]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(others)
        for name, values in rates.items():
            numbers = (statistics.median(values), min(values), max(values))
            row = (options.task, name, *(round(v) for v in numbers), len(values), processor(), usable_cores())
            writer.writerow(dict(zip(COLUMNS, row, strict=True)))
    record(path)


if __name__ == "__main__":
    main()
