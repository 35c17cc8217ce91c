"""A campaign of random faults: figures/data/faults.csv.

    python figures/measure_faults.py --faults 200 --stops 50

Each run is a process of its own that trains for some iterations with 1 to 4 workers, central or sharded; at a random
moment a worker is killed, stopped, made to fault, or its environment raises. The run must end with the hash of the
undisturbed one, leave no process and no shared memory. Every fourth run also is stopped (SIGTERM, or SIGKILL of the
learner between checkpoints) and resumed with another number of workers. The runs of --stops have no other fault than
that (`fault` is "none").
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from provenance import DATA, HERE, record

COMMON = (
    "--num-envs 6 --rollout-steps 64 --minibatches 2 --epochs 2 --grad-shards 4 --hidden-size 32 --seq-len 8 --quiet"
)
TASKS = {
    "CartPole": ("--env fault_environments:RaisesOnceCartPole-v0", 60),
    "Pendulum": ("--env fault_environments:RaisesOncePendulum-v0 --hide-obs 2 --core gru", 60),
    "HalfCheetah": ("--env fault_environments:RaisesOnceHalfCheetah-v0", 50),
}
FAULTS = ("KILL", "SEGV", "STOP", "raise")
TIMEOUT = 1.0  # --worker-timeout: what a stopped worker costs before it is noticed
COLUMNS = (
    "run", "task", "workers", "learning", "fault", "moment", "stopped_by", "resumed_workers", "restarts", "same_hash",
    "left_processes", "left_shared_mappings", "seconds_lost",
)  # fmt: skip


def environment(flag: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]), "SHMPPO_FAULT": str(flag)}


def command(task: str, workers: int, learning: str, run_dir: Path) -> list[str]:
    flags, iterations = TASKS[task]
    steps = iterations * 6 * 64
    text = (
        f"{flags} {COMMON} --workers {workers} --learning {learning} --worker-timeout {TIMEOUT} --total-steps {steps}"
    )
    return [sys.executable, "-m", "shmppo.train", *text.split(), "--checkpoint-every", "5", "--run-dir", str(run_dir)]


@cache
def undisturbed(task: str, workers: int, learning: str) -> dict[str, Any]:
    """Summary of the run without a fault."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        subprocess.run(command(task, workers, learning, run_dir), check=True, env=environment(Path(directory) / "no"))
        return json.loads((run_dir / "summary.json").read_text())


def workers_of(learner: psutil.Process) -> list[psutil.Process]:
    """The learner's rollout processes: they have torch's shared memory mapped."""
    found = []
    for process in learner.children(recursive=True):
        try:
            if "/dev/shm/torch_" in Path(f"/proc/{process.pid}/maps").read_text():
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def in_training(run_dir: Path, learner: psutil.Popen) -> bool:
    """Wait until the first iteration is booked; False if the run ends before."""
    while learner.poll() is None:
        metrics = run_dir / "metrics.csv"
        if metrics.exists() and metrics.read_bytes().count(b"\n") > 1:
            return True
        time.sleep(0.01)
    return False


def strike(fault: str, learner: psutil.Popen, flag: Path, draw: random.Random) -> bool:
    """Do the fault; False if there was nobody left to strike."""
    if fault == "none":
        return True
    if fault == "raise":
        flag.touch()
        return True
    victims = workers_of(learner)
    if not victims:
        return False
    try:
        draw.choice(victims).send_signal(getattr(signal, f"SIG{fault}"))
    except psutil.Error:
        return False
    return True


def left_shared(mine: set[int]) -> int:
    """Mappings of torch's shared memory that processes of this run still have."""
    total = 0
    for pid in mine:
        try:
            total += Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/torch_")
        except OSError:
            continue
    return total


def one_run(run: int, *, stop_only: bool) -> dict[str, Any]:
    """One disturbed run as a row of the table."""
    draw = random.Random(f"{run} {stop_only}")
    task = draw.choice(list(TASKS))
    workers, learning, fault = draw.randint(1, 4), draw.choice(("central", "sharded")), draw.choice(FAULTS)
    if stop_only:
        fault = "none"
    reference = undisturbed(task, workers, learning)
    moment = draw.uniform(0, 0.8 * reference["wall_seconds"])
    stopped_by = draw.choice(("TERM", "KILL")) if stop_only or run % 4 == 0 else ""
    resumed = draw.randint(0, 4)
    with tempfile.TemporaryDirectory() as directory:
        run_dir, flag = Path(directory) / "run", Path(directory) / "fault"
        learner = psutil.Popen(command(task, workers, learning, run_dir), env=environment(flag))
        mine = {learner.pid}
        if in_training(run_dir, learner):
            time.sleep(moment)
            mine |= {p.pid for p in learner.children(recursive=True)}
            strike(fault, learner, flag, draw)
        if stopped_by:
            time.sleep(draw.uniform(0, 0.2 * reference["wall_seconds"]))
            mine |= {p.pid for p in learner.children(recursive=True)}
            if learner.poll() is None:
                learner.send_signal(getattr(signal, f"SIG{stopped_by}"))
        learner.wait(timeout=120)
        flag.unlink(missing_ok=True)
        alive = psutil.wait_procs([psutil.Process(p) for p in mine if psutil.pid_exists(p)], timeout=10)[1]
        summary_file = run_dir / "summary.json"
        done = summary_file.exists() and not json.loads(summary_file.read_text())["stopped_early"]
        if stopped_by and not done:
            again = [sys.executable, "-m", "shmppo.train", "--resume", str(run_dir), "--workers", str(resumed)]
            subprocess.run([*again, "--learning", "auto"], check=True, env=environment(flag), timeout=120)
        summary = json.loads(summary_file.read_text())
    return {
        "run": run, "task": task, "workers": workers, "learning": learning, "fault": fault, "moment": round(moment, 3),
        "stopped_by": stopped_by, "resumed_workers": resumed if stopped_by else "",
        "restarts": summary["worker_restarts"],
        "same_hash": summary["weights_sha256"] == reference["weights_sha256"],
        "left_processes": len(alive), "left_shared_mappings": left_shared(mine),
        "seconds_lost": "" if stopped_by else round(summary["wall_seconds"] - reference["wall_seconds"], 3),
    }  # fmt: skip


def campaign(faults: int, stops: int, side_by_side: int) -> Iterator[dict[str, Any]]:
    """Rows of `faults` runs with a fault and `stops` runs that are only stopped and resumed."""
    for task, workers, learning in itertools.product(TASKS, (1, 2, 3, 4), ("central", "sharded")):
        undisturbed(task, workers, learning)  # before the faults, so that two runs do not measure it at once
    runs = [(run, False) for run in range(faults)] + [(run, True) for run in range(stops)]
    with ThreadPoolExecutor(side_by_side) as pool:
        yield from pool.map(lambda r: one_run(r[0], stop_only=r[1]), runs)


def shared_bytes_in_use() -> int:
    """Of the machine's /dev/shm; segments that are mapped and have no name any more are among them."""
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--side-by-side", type=int, default=2)
    options = parser.parse_args()
    before = shared_bytes_in_use()
    with open(DATA / "faults.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in campaign(options.faults, options.stops, options.side_by_side):
            writer.writerow(row)
            file.flush()
            print(row, flush=True)
    left = shared_bytes_in_use() - before
    record(DATA / "faults.csv", f"{left} bytes more of /dev/shm in use after the last run than before the first.")


if __name__ == "__main__":
    main()
