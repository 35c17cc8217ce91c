"""Part kills: a process of a run is killed, stalls, or is asked to stop, and the run is resumed if it ended."""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from figures.common.campaigns import WRONG
from figures.faults.runs import ITERATIONS, JOBS, Run, new_run, reference

FAULTS = ("kill a worker", "stall a worker", "kill a learner", "stall a learner", "SIGINT", "SIGTERM")
STOPS = ("SIGINT", "SIGTERM")
HANG_SECONDS = 600.0
"""Far above the time that a run needs on a loaded machine. Only a run that hangs takes as long."""
END_SECONDS = 60.0
"""A process that still imports torch notices afterwards that its run has ended."""
STALL_SECONDS = 1.5


@dataclass(frozen=True)
class Disturbance:
    """The random choices for one disturbed run."""

    job: str
    ranks: int
    workers: int
    learning: str
    fault: str
    rank: int
    """The rank whose worker or learner is affected. SIGINT and SIGTERM go to all learners."""
    moment: int
    """Iterations before the fault; 0: during the start."""
    jitter: float
    """Seconds after the iteration, or after the start of the processes."""
    resumed_workers: int


def draw_disturbance(case: int) -> Disturbance:
    """Draw the disturbance of a case. Its number determines all choices."""
    draw = random.Random(f"disturbance {case}")
    ranks, fault = draw.choice((1, 1, 1, 2)), draw.choice(FAULTS)
    workers = draw.randint(1 if "worker" in fault else 0, 4 if ranks == 1 else 2)
    moment = draw.choice((0, *draw.choices(range(1, ITERATIONS - 4), k=5)))
    jitter = round(draw.uniform(0, 0.05 if moment else 3.0), 4)
    learning = draw.choice(("central", "sharded")) if workers else "central"
    job, rank = draw.choice(list(JOBS)), draw.randrange(ranks)
    return Disturbance(job, ranks, workers, learning, fault, rank, moment, jitter, draw.randint(0, 3))


def cause(chosen: Disturbance, run: Run) -> bool:
    """Cause the fault. Returns whether it affected a process."""
    if chosen.moment and not run.wait_iterations(chosen.moment):
        return False
    time.sleep(chosen.jitter)
    if chosen.fault in STOPS:
        targets = run.learners
    else:
        targets = run.workers(chosen.rank) if "worker" in chosen.fault else [run.learners[chosen.rank]]
        targets = targets[:1]
    if not targets or not run.running():
        return False
    number = {"kill": signal.SIGKILL, "stal": signal.SIGSTOP}.get(chosen.fault[:4])
    with suppress(psutil.Error):
        for process in targets:
            process.send_signal(number or signal.Signals[chosen.fault])
        if chosen.fault == "stall a learner":
            time.sleep(STALL_SECONDS)
            targets[0].send_signal(signal.SIGCONT)
    return True


def defects(
    chosen: Disturbance, hit: bool, codes: Sequence[int] | None, stderr: Sequence[str], resumed: Sequence[int] | None
) -> list[str]:
    """Return what a disturbed run did wrong before it was resumed, and whether the resumed run failed.

    Args:
        chosen: the disturbance.
        hit: whether it affected a process.
        codes: exit codes of the ranks; None if the run hung.
        stderr: text of each rank.
        resumed: exit codes of the resumed run; empty if the run needed none, None if it hung.
    """
    if codes is None or resumed is None:
        return ["hung"]
    found = [f"could not be resumed: {list(resumed)}"] if any(resumed) else []
    stopped = chosen.fault in STOPS
    survives = chosen.fault == "stall a learner" or ("worker" in chosen.fault and chosen.moment > 0)
    if any(codes) and (survives or not hit):
        found.append(f"ended with {list(codes)}")
    for rank, (code, text) in enumerate(zip(codes, stderr, strict=True)):
        killed = chosen.fault == "kill a learner" and rank == chosen.rank
        if code < 0 and not killed and not (stopped and chosen.moment == 0):
            found.append(f"rank {rank} ended with {code}")
        if "Traceback" in text and not stopped:
            found.append(f"rank {rank} printed a traceback: {' | '.join(text.strip().splitlines()[-3:])[-300:]}")
        if code == 1 and not stopped and sum(line.startswith("error:") for line in text.splitlines()) != 1:
            found.append(f"rank {rank} did not end with one sentence")
    return found


def measure(case: int) -> dict[str, Any]:
    """Run one case, and return its row."""
    chosen = draw_disturbance(case)
    expected = reference(chosen.job, chosen.ranks)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run = Run(
            new_run(chosen.job, chosen.ranks, chosen.workers, chosen.learning, directory), chosen.ranks, directory
        )
        hit = cause(chosen, run)
        codes, stderr = run.wait(HANG_SECONDS), run.stderr()
        left = run.kill_left(0 if codes is None else END_SECONDS)
        resumed: list[int] | None = []
        if codes is not None and run.summary() is None:
            run = Run(_resume(chosen, directory), chosen.ranks, directory)
            resumed = run.wait(HANG_SECONDS)
            left += run.kill_left(0 if resumed is None else END_SECONDS)
        summary = run.summary() or {"weights_sha256": "", "exact": False, "wall_seconds": 0.0}
    found = defects(chosen, hit, codes, stderr, resumed) + [f"left: {command}" for command in left]
    if summary["weights_sha256"] != expected["weights_sha256"] or summary["exact"] is False:
        found.append("other weights than the undisturbed run, or not exact")
    return {
        "case": case,
        **dataclasses.asdict(chosen),
        "hit": hit,
        "seconds_lost": "" if resumed else round(summary["wall_seconds"] - expected["wall_seconds"], 2),
        "outcome": WRONG if found else ("resumed" if resumed else "continued"),
        "message": "; ".join(found),
    }


def _resume(chosen: Disturbance, directory: Path) -> str:
    """Return the arguments that resume the run, or that start it again if it has saved nothing."""
    if list((directory / "run").glob("checkpoint*.pt")):
        return f"--resume {directory / 'run'} --workers {chosen.resumed_workers} --learning auto"
    shutil.rmtree(directory / "run", ignore_errors=True)
    return new_run(chosen.job, chosen.ranks, chosen.resumed_workers, "auto", directory)
