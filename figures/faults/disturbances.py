"""Random disturbances of a run: draw one, and cause it."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from figures.faults.small_jobs import ITERATIONS, JOBS, Reference, Started, find_workers, wait_iterations

SIGNALS = ("KILL", "SEGV", "STOP", "STOP-CONT")
FAULTS = (*SIGNALS, "raise", "exit", "memory", "disk", "delete", "none")
TARGETS = ("worker", "worker", "learner", "evaluator", "fork server")
MOMENTS = ("start", "training", "training", "checkpoint", "evaluation")
MARGIN_BYTES = 1 << 20
"""Address space that a process with the fault "memory" can still allocate."""
DISK_BYTES = 6 << 20
"""Size of the file system of a run with the fault "disk"."""
WATCH_SECONDS = 3.0


@dataclass(frozen=True)
class Disturbance:
    """The random choices for one disturbed run."""

    job: str
    ranks: int
    workers: int
    learning: str
    fault: str
    target: str
    """The process that a signal or the limit of memory affects; "" for other faults."""
    rank: int
    """The rank whose process is affected."""
    moment: str
    delay: float
    """Of the time before the first iteration (moment "start"), or of the iterations of the run, 0 … 1."""
    lasting: bool
    """Whether a full disk stays full until the run ends."""
    stopped_by: str
    """INT, TERM, or nothing."""
    resumed_workers: int


def draw_disturbance(case: int) -> Disturbance:
    """Draw the disturbance of a case. Its number determines all choices."""
    draw = random.Random(f"disturbance {case}")
    fault = draw.choice(FAULTS)
    job = draw.choice([name for name in JOBS if fault not in ("raise", "exit") or name != "MuJoCo"])
    ranks = draw.choice((1, 1, 1, 2))
    workers = draw.randint(0, 3)
    learning = draw.choice(("central", "sharded")) if workers else "central"
    target = draw.choice(TARGETS) if fault in (*SIGNALS, "memory") else ""
    stopped = draw.random() < 0.25 or fault == "none"
    return Disturbance(
        job, ranks, workers, learning, fault, target, draw.randrange(ranks), draw.choice(MOMENTS), draw.random(),
        draw.random() < 0.5, draw.choice(("INT", "TERM")) if stopped else "", draw.randint(0, 3),
    )  # fmt: skip


def wait_for_moment(chosen: Disturbance, started: Started, run_dir: Path, reference: Reference) -> None:
    """Wait until the moment of the disturbance, or until the run has ended."""
    if chosen.moment == "start":
        time.sleep(chosen.delay * reference.start_seconds)
        return
    if not wait_iterations(run_dir, started.running, max(1, int(0.8 * chosen.delay * ITERATIONS))):
        return
    pattern = {"checkpoint": "*.partial", "evaluation": "evaluation.pt"}.get(chosen.moment)
    deadline = time.monotonic() + WATCH_SECONDS
    while pattern and started.running() and time.monotonic() < deadline and not list(run_dir.glob(pattern)):
        time.sleep(0.0005)


def cause(chosen: Disturbance, started: Started, run_dir: Path) -> tuple[bool, Callable[[], None]]:
    """Cause the fault.

    Returns:
        Whether something was affected, and a function that ends the fault. Call it when the run has ended or hangs.
    """
    learner = started.learners[chosen.rank]
    if chosen.fault in ("raise", "exit"):
        (started.directory / "fault").write_text(chosen.fault)
        return started.running(), lambda: (started.directory / "fault").unlink(missing_ok=True)
    if chosen.fault == "delete":
        shutil.rmtree(run_dir, ignore_errors=True)
        return started.running(), lambda: None
    if chosen.fault == "disk":
        return started.running(), _fill_disk(run_dir.parent, lasting=chosen.lasting)
    process = find_target(learner, chosen.target)
    if process is None or chosen.fault == "none":
        return False, lambda: None
    with suppress(psutil.Error):
        if chosen.fault == "memory":
            limit = process.memory_info().vms + MARGIN_BYTES
            process.rlimit(resource.RLIMIT_AS, (limit, limit))
        else:
            process.send_signal(getattr(signal, f"SIG{chosen.fault.split('-')[0]}"))
        if chosen.fault == "STOP-CONT":
            time.sleep(12 * chosen.delay)
            process.send_signal(signal.SIGCONT)
        return True, lambda: _continue(process)
    return False, lambda: None


def find_target(learner: psutil.Process, target: str) -> psutil.Process | None:
    """Return a process of a run by its role; None if there is none at this moment."""
    if target == "learner":
        return learner
    workers = find_workers(learner)
    if target == "worker":
        return workers[-1] if workers else None
    try:
        helpers = [child for child in learner.children() if "forkserver" in " ".join(child.cmdline())]
        if target == "fork server" or not helpers:
            return helpers[0] if helpers else None
        others = [child for child in helpers[0].children() if child not in workers]
        return others[0] if others else None
    except psutil.Error:
        return None


def mount_disk(directory: Path) -> bool:
    """Mount a small file system in memory; return False if this is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    try:
        return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def unmount_disk(directory: Path) -> None:
    """Remove the file system of `mount_disk`."""
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _fill_disk(directory: Path, *, lasting: bool) -> Callable[[], None]:
    """Fill a file system, for one second or until the returned function is called."""
    file = directory / "filler"
    with suppress(OSError), open(file, "wb", buffering=0) as filler:
        try:
            for size in (1 << 16, 1 << 8, 1):
                with suppress(OSError):
                    while filler.write(b"x" * size):
                        pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    if not lasting:
        time.sleep(1.0)
        file.unlink(missing_ok=True)
    return lambda: file.unlink(missing_ok=True)


def _continue(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.send_signal(signal.SIGCONT)
