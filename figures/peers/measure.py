"""Compare the throughput of shmppo with that of other PPO implementations.

    python -m figures.peers.measure --task A --repetitions 3 \
        --peer "sb3-contrib RecurrentPPO=VENV/bin/python bench_sb3.py A dummy 1 16" \
        --peer "PufferLib 3.0, 2 threads=THREADS=2 VENV/bin/python bench_puffer.py A serial 1 16"

A peer is a name and a shell command that prints a line with `sps=NUMBER`. Commands run in a temporary directory, so use
absolute paths. Each peer needs its own virtual environment; none is
part of this repository. The number of shmppo is that of `python -m shmppo.bench throughput`. All runs are
interleaved. Each has 23 iterations, of which the first 3 do not count.

Task A: HalfCheetah-v5, 16 environments × 128 steps, Linear(17, 128)-tanh-LSTM(128), 4 epochs × 4 minibatches, sequences
of 16 steps. Task B: CartPole-v1 with 64 environments, otherwise the same. Task A-envpool: task A with EnvPool for all
trainers; `peer_with_envpool.py` runs a peer's script with EnvPool. Replaces the rows of the task in peers.csv.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures.common.command_line import script_parser
from figures.common.jobs import TASK_A, TASK_B
from figures.common.paths import ROOT
from figures.common.tables import read_rows, write_rows
from shmppo.config.checks import flags_with_values
from shmppo.utils.machine import processor, usable_cores

TABLE = Path(__file__).with_name("peers.csv")
TASKS = {
    "A": TASK_A,
    "B": TASK_B,
    "A-envpool": TASK_A | {"env": "figures.peers.envpool_env:EnvPool", "env_backend": "vector"},
}
SHMPPO = {
    "shmppo, 2 workers": {"workers": 2, "grad_shards": 2},  # as many shards as workers is fastest
    "shmppo, 1 process": {"workers": 0, "grad_shards": 1},
    "central learner with a step loop, 2 workers": {
        "workers": 2, "grad_shards": 1, "learning": "central", "network": "figures.peers.step_loop:make",
    },
}  # fmt: skip
"""The last one is the usual architecture: workers act, one process learns, one LSTM step at a time."""


def measure_shmppo(task: str, name: str) -> float:
    """Return the steps per second of shmppo."""
    command = [sys.executable, "-m", "shmppo.bench", "throughput", *flags_with_values(TASKS[task] | SHMPPO[name])]
    command += ["--no-roofline", "--json"]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(json.loads(result.stdout)["steps_per_second"])


def measure_peer(command: str) -> float:
    """Return the steps per second that the command of a peer prints last."""
    with tempfile.TemporaryDirectory() as directory:  # some peers write into the working directory
        result = subprocess.run(
            command, shell=True, cwd=directory, check=True, capture_output=True, text=True, timeout=600
        )
    found = re.findall(r"\bsps=([\d.]+)", result.stdout)
    if not found:
        raise SystemExit(f"the output has no sps=NUMBER: {command}")
    return float(found[-1])


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in options.peer)
    rates: dict[str, list[float]] = {name: [] for name in (*SHMPPO, *peers)}
    for _ in range(options.repetitions):
        for name, values in rates.items():
            values.append(measure_peer(peers[name]) if name in peers else measure_shmppo(options.task, name))
            print(f"{options.task}  {name:<40}{values[-1]:10,.0f}", flush=True)
    rows = [
        {
            "task": options.task,
            "trainer": name,
            "steps_per_second": round(median(values)),
            "lowest": round(min(values)),
            "highest": round(max(values)),
            "repetitions": len(values),
            "processor": processor(),
            "cores": usable_cores(),
        }
        for name, values in rates.items()
    ]
    write_rows(TABLE, [row for row in read_rows(TABLE) if row["task"] != options.task] + rows)


if __name__ == "__main__":
    main()
