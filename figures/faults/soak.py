"""Part soak: the memory and the open file descriptors of the processes of a long run."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from figures.faults.runs import Run

FLAGS = "--env HalfCheetah-v5 --workers 2 --total-steps 1000000000 --checkpoint-every 100 --quiet"
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = 120.0


def anonymous_memory(pid: int) -> float:
    """Return the MiB that a process has written itself. Pages of library files depend on other programs."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def measure(minutes: float) -> list[dict[str, Any]]:
    """Train, and return a row per process: its memory after the warm-up and in the middle and at the end."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(f"{FLAGS} --run-dir {directory}/run", 1, Path(directory))
        run.wait_iterations(20)
        learner = run.learners[0]
        names = {learner.pid: "learner"} | {worker.pid: f"worker {i}" for i, worker in enumerate(run.workers(0))}
        time.sleep(WARM_UP_SECONDS)
        samples: dict[int, list[float]] = {pid: [] for pid in names}
        files: dict[int, set[int]] = {pid: set() for pid in names}
        deadline = time.monotonic() + 60 * minutes
        while time.monotonic() < deadline:
            for pid in names:
                samples[pid].append(anonymous_memory(pid))
                files[pid].add(psutil.Process(pid).num_fds())
            time.sleep(SAMPLE_SECONDS)
        learner.send_signal(signal.SIGTERM)
        if run.wait(60.0) != [0]:
            raise RuntimeError(f"the run did not end: {run.stderr()}")
    return [
        {
            "process": name,
            "minutes": minutes,
            **{
                f"mib_{part}": round(samples[pid][at], 2)
                for part, at in (("start", 0), ("middle", len(samples[pid]) // 2), ("end", -1))
            },
            "file_descriptors": " ".join(map(str, sorted(files[pid]))),
        }
        for pid, name in names.items()
    ]
