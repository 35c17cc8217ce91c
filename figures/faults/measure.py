"""Disturb training runs by random failures, and check that they end with the weights of undisturbed runs.

    python -m figures.faults.measure --faults 200 --stops 50

Each run is a process that trains for some iterations with 1 to 4 workers, with central or sharded learning. At a random
moment a worker is killed or stopped, gets SIGSEGV, or its environment raises. The run must end with the weights of the
undisturbed run, and leave neither processes nor shared memory. Every fourth run is also stopped (by SIGTERM, or by
SIGKILL to the learner between two checkpoints) and resumed with another number of workers. The runs of --stops are
stopped and resumed without another failure (`fault` is "none"). Writes faults.csv.

    python -m figures.faults.measure --anywhere --cases 300

With --anywhere, the runs are small jobs, and the disturbance can be at the start, during a checkpoint or an evaluation,
and in any process, also of one of two ranks. In addition to the failures above, a process ends by itself, has too
little memory, the disk is full, or the run directory is deleted. Each run must end with the weights of the undisturbed
run, or with an error after which it can be continued to these weights. Writes anywhere.csv.

A campaign that was stopped continues at its next run. `--only NUMBER` repeats a case of anywhere.csv.
"""

from __future__ import annotations

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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil

from figures.common.campaigns import campaign_parser, run_campaign
from figures.common.evaluated_runs import is_finished
from figures.common.paths import ROOT
from figures.common.provenance import record_provenance
from figures.common.tables import append_rows, read_rows
from figures.faults import anywhere
from figures.faults.small_jobs import find_workers, wait_iterations

TABLE = Path(__file__).with_name("faults.csv")
TIMEOUT = 1.0  # --worker-timeout: seconds until the learner replaces a stopped worker
COMMON = (
    "--num-envs 6 --rollout-steps 64 --minibatches 2 --epochs 2 --grad-shards 4 --hidden-size 32 --seq-len 8 --quiet "
    f"--checkpoint-every 5 --worker-timeout {TIMEOUT}"
)
BATCH_STEPS = 6 * 64
TASKS = {
    "CartPole": ("--env figures.faults.environments:RaisesOnceCartPole-v0", 60),
    "Pendulum": ("--env figures.faults.environments:RaisesOncePendulum-v0 --hide-obs 2 --core gru", 60),
    "HalfCheetah": ("--env figures.faults.environments:RaisesOnceHalfCheetah-v0", 50),
}
"""Flags and iterations of each task."""
FAULTS = ("KILL", "SEGV", "STOP", "raise")


@dataclass(frozen=True)
class Disturbance:
    """The random choices for one disturbed run."""

    task: str
    workers: int
    learning: str
    fault: str
    moment: float
    """Seconds after the first iteration."""
    stopped_by: str
    """TERM, KILL, or nothing."""
    resumed_workers: int


def environment(fault_file: Path) -> dict[str, str]:
    """Return the environment variables of a run."""
    return os.environ | {"SHMPPO_FAULT": str(fault_file)}


def command(task: str, workers: int, learning: str, run_dir: Path) -> list[str]:
    """Return the command that trains."""
    flags, iterations = TASKS[task]
    text = f"{flags} {COMMON} --workers {workers} --learning {learning} --total-steps {iterations * BATCH_STEPS}"
    return [sys.executable, "-m", "shmppo.train", *text.split(), "--run-dir", str(run_dir)]


@cache
def undisturbed(task: str, workers: int, learning: str) -> dict[str, Any]:
    """Train without a failure and return the summary of the run."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir, no_file = Path(directory) / "run", Path(directory) / "no_file"
        subprocess.run(command(task, workers, learning, run_dir), cwd=ROOT, check=True, env=environment(no_file))
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
        return summary


def cause_fault(fault: str, learner: psutil.Popen, fault_file: Path, draw: random.Random) -> None:
    """Cause the failure, unless the workers have ended already."""
    if fault == "raise":
        fault_file.touch()
    if fault in ("none", "raise"):
        return
    workers = find_workers(learner)
    if workers:
        with suppress(psutil.Error):
            draw.choice(workers).send_signal(getattr(signal, f"SIG{fault}"))


def shared_mappings(pids: set[int]) -> int:
    """Count the mappings of torch's shared memory in these processes."""
    total = 0
    for pid in pids:
        try:
            total += Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/torch_")
        except OSError:
            continue
    return total


def run_disturbed(
    chosen: Disturbance, reference_seconds: float, draw: random.Random
) -> tuple[dict[str, Any], list[psutil.Process], int]:
    """Train with the disturbance, and resume the run if it was stopped.

    Returns:
        The summary of the run, the processes that are left, and the number of shared mappings that are left.
    """
    with tempfile.TemporaryDirectory() as directory:
        run_dir, fault_file = Path(directory) / "run", Path(directory) / "fault"
        train = command(chosen.task, chosen.workers, chosen.learning, run_dir)
        learner = psutil.Popen(train, cwd=ROOT, env=environment(fault_file))
        pids = {learner.pid}
        if wait_iterations(run_dir, lambda: learner.poll() is None):
            time.sleep(chosen.moment)
            pids |= {process.pid for process in learner.children(recursive=True)}
            cause_fault(chosen.fault, learner, fault_file, draw)
        if chosen.stopped_by:
            time.sleep(draw.uniform(0, 0.2 * reference_seconds))
            pids |= {process.pid for process in learner.children(recursive=True)}
            if learner.poll() is None:
                learner.send_signal(getattr(signal, f"SIG{chosen.stopped_by}"))
        learner.wait(timeout=120)
        fault_file.unlink(missing_ok=True)
        processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        left = psutil.wait_procs(processes, timeout=10)[1]
        if chosen.stopped_by and not is_finished(run_dir):
            resume = [sys.executable, "-m", "shmppo.train", "--resume", str(run_dir), "--learning", "auto"]
            resume += ["--workers", str(chosen.resumed_workers)]
            subprocess.run(resume, cwd=ROOT, check=True, env=environment(fault_file), timeout=120)
        return json.loads((run_dir / "summary.json").read_text()), left, shared_mappings(pids)


def measure(run: int, *, stop_only: bool) -> dict[str, Any]:
    """Train one disturbed run and return its row of the table. Its number determines all random choices."""
    draw = random.Random(f"{run} {stop_only}")
    task = draw.choice(list(TASKS))
    workers, learning, fault = draw.randint(1, 4), draw.choice(("central", "sharded")), draw.choice(FAULTS)
    reference = undisturbed(task, workers, learning)
    seconds = reference["wall_seconds"]
    moment = draw.uniform(0, 0.8 * seconds)
    stopped_by = draw.choice(("TERM", "KILL")) if stop_only or run % 4 == 0 else ""
    fault = "none" if stop_only else fault
    chosen = Disturbance(task, workers, learning, fault, moment, stopped_by, draw.randint(0, 4))
    summary, left, mappings = run_disturbed(chosen, seconds, draw)
    return {
        "run": run, "task": task, "workers": workers, "learning": learning, "fault": fault, "moment": round(moment, 3),
        "stopped_by": stopped_by, "resumed_workers": chosen.resumed_workers if stopped_by else "",
        "restarts": summary["worker_restarts"],
        "same_hash": summary["weights_sha256"] == reference["weights_sha256"],
        "left_processes": len(left), "left_shared_mappings": mappings,
        "seconds_lost": "" if stopped_by else round(summary["wall_seconds"] - seconds, 3),
    }  # fmt: skip


def campaign(faults: int, stops: int, parallel_runs: int, done: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of `faults` runs with a failure, and of `stops` runs that are only stopped and resumed.

    The first `done` rows are left out.
    """
    for task, workers, learning in itertools.product(TASKS, (1, 2, 3, 4), ("central", "sharded")):
        undisturbed(task, workers, learning)  # fill the cache first: parallel runs would train the same reference twice
    runs = [(run, False) for run in range(faults)] + [(run, True) for run in range(stops)]
    with ThreadPoolExecutor(parallel_runs) as pool:
        yield from pool.map(lambda arguments: measure(arguments[0], stop_only=arguments[1]), runs[done:])


def shared_memory_in_use() -> int:
    """Return the bytes in use in /dev/shm, including segments that are mapped but have no name any more."""
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def main() -> int:
    parser = campaign_parser(__doc__, 300)
    parser.add_argument("--faults", type=int, default=200, help="runs with a failure")
    parser.add_argument("--stops", type=int, default=50, help="runs that are only stopped and resumed")
    parser.add_argument("--anywhere", action="store_true", help="disturb small jobs anywhere (--cases, --only)")
    parser.add_argument("--parallel-runs", type=int, default=2, help="runs at the same time")
    options = parser.parse_args()
    if options.anywhere:
        measure_cases = partial(anywhere.campaign, parallel_runs=options.parallel_runs)
        return run_campaign(TABLE.with_name("anywhere.csv"), options.cases, measure_cases, options.only)
    before = shared_memory_in_use()
    for row in campaign(options.faults, options.stops, options.parallel_runs, len(read_rows(TABLE))):
        append_rows(TABLE, [row], note=None)
        print(row, flush=True)
    left = shared_memory_in_use() - before
    record_provenance(TABLE, f"The campaign left {left} additional bytes in /dev/shm.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
