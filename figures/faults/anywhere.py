"""Disturb runs anywhere: at the start, during checkpoints and evaluations, with ranks, in any process."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from figures.common.campaigns import WRONG
from figures.faults.disturbances import (
    Disturbance,
    cause,
    draw_disturbance,
    mount_disk,
    unmount_disk,
    wait_for_moment,
)
from figures.faults.judge import Evidence, defects
from figures.faults.small_jobs import Started, marked_processes, new_run, read_summary, reference

HANG_SECONDS = 900.0
"""Far above the time that a run needs on a loaded machine. Only a run that hangs takes as long."""
END_SECONDS = 60.0
"""A process that still imports torch notices afterwards that its run has ended. On a loaded machine this takes long."""
STOPPED_SECONDS = 2.0
"""Time for which a learner stays stopped before the campaign kills it."""


def measure(case: int) -> dict[str, Any]:
    """Run one case, and return its row."""
    chosen = draw_disturbance(case)
    row: dict[str, Any] = {"case": case} | dataclasses.asdict(chosen) | {"delay": round(chosen.delay, 3)}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        disk = directory / "disk"
        disk.mkdir()
        if chosen.fault == "disk":
            if not mount_disk(disk):
                return row | {"hit": False, "codes": "", "outcome": "skipped", "message": "needs the rights to mount"}
            stack.callback(unmount_disk, disk)
        seen = run_disturbed(chosen, directory, disk / "run")
    found = defects(chosen, seen)
    outcome = WRONG if found else ("continued" if seen.resumed_codes else "same hash")
    codes = " ".join(map(str, seen.codes))
    return row | {"hit": seen.hit, "codes": codes, "outcome": outcome, "message": "; ".join(found)}


def run_disturbed(chosen: Disturbance, directory: Path, run_dir: Path) -> Evidence:
    """Train with the disturbance, continue the run if it did not finish, and return what was observed."""
    expected = reference(chosen.job, chosen.ranks)
    started = Started(
        new_run(chosen.job, chosen.workers, chosen.learning, chosen.ranks, run_dir), chosen.ranks, directory
    )
    wait_for_moment(chosen, started, run_dir, expected)
    hit, end_fault = cause(chosen, started, run_dir)
    if chosen.stopped_by:
        time.sleep(0.3 * chosen.delay)
        for learner in started.learners:
            with suppress(psutil.Error):
                learner.send_signal(getattr(signal, f"SIG{chosen.stopped_by}"))
    if chosen.fault == "STOP" and chosen.target == "learner":
        time.sleep(STOPPED_SECONDS)
        started.learners[chosen.rank].kill()
    hung = not started.wait(HANG_SECONDS)
    codes, stderr = started.codes(), started.stderr()
    end_fault()
    left = _kill_left(directory, wait=not hung)
    resumed_codes, resumed_stderr = [], [""]
    if not hung and read_summary(run_dir) is None:
        again = _continue(chosen, directory, run_dir)
        hung = not again.wait(HANG_SECONDS)
        resumed_codes, resumed_stderr = again.codes(), again.stderr()
        left += _kill_left(directory, wait=not hung)
    summary = read_summary(run_dir) or {"weights_sha256": "", "exact": False}
    same = summary["weights_sha256"] == expected.weights_sha256
    return Evidence(hit, hung, codes, stderr, resumed_codes, resumed_stderr, same, summary["exact"], left)


def _continue(chosen: Disturbance, directory: Path, run_dir: Path) -> Started:
    """Resume the run from its newest checkpoint, or start it again if it has saved nothing."""
    flags = ["--workers", str(chosen.resumed_workers), "--learning", "auto"]
    if chosen.fault == "delete" and chosen.ranks > 1:  # not every rank has saved a checkpoint again
        shutil.rmtree(run_dir, ignore_errors=True)
    if list(run_dir.glob("checkpoint*.pt")):
        return Started(["--resume", str(run_dir), *flags], chosen.ranks, directory)
    return Started(new_run(chosen.job, chosen.resumed_workers, "auto", chosen.ranks, run_dir), chosen.ranks, directory)


def _kill_left(directory: Path, *, wait: bool) -> list[str]:
    """Kill the processes of the run that are left after some seconds. Returns their commands."""
    left = marked_processes(directory)
    if wait and left:
        left = psutil.wait_procs(left, timeout=END_SECONDS)[1]
    commands = []
    for process in left:
        with suppress(psutil.Error):
            commands.append(f"{process.status()} {' '.join(process.cmdline())[:80]}")
            process.kill()
    psutil.wait_procs(left, timeout=10)
    return commands


def campaign(cases: Sequence[int], parallel_runs: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of these cases."""
    with ThreadPoolExecutor(parallel_runs) as pool:
        needed = {(chosen.job, chosen.ranks) for chosen in map(draw_disturbance, cases)}
        # Fill the cache first: parallel runs would train the same reference several times.
        for _ in pool.map(lambda key: reference(*key), sorted(needed)):
            pass
        yield from pool.map(measure, cases)
