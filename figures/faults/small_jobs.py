"""Small jobs that take seconds, and what an undisturbed run of each gives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from figures.common.jobs import rank_variables
from figures.common.paths import ROOT

JOBS = {
    "CartPole": "--env figures.faults.environments:RaisesOnceCartPole-v0 --hide-obs 1 3",
    "Pendulum": "--env figures.faults.environments:RaisesOncePendulum-v0 --hide-obs 2 --core gru",
    "InvertedPendulum": "--env figures.faults.environments:RaisesOnceInvertedPendulum-v0",
    "MuJoCo": "--env InvertedPendulum-v5 --env-backend mujoco",
}
"""Flags of each job. MuJoCo has no wrapper, so all simulations of a worker are stepped together."""
ITERATIONS = 24
COMMON = (
    "--num-envs 6 --rollout-steps 64 --minibatches 2 --epochs 2 --grad-shards 4 --hidden-size 16 --encoder-sizes 16 "
    "--seq-len 8 --quiet --checkpoint-every 3 --eval-every 4 --eval-episodes 1 --worker-timeout 8 --rank-timeout 40"
)
BATCH_STEPS = 6 * 64
MARK = "SHMPPO_CAMPAIGN"
"""Environment variable with the directory of a run. All processes of the run inherit it."""
START_TIMEOUT = 900.0


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run gives."""

    weights_sha256: str
    start_seconds: float
    """Until the first iteration has ended."""


class Started:
    """The processes of a run, one learner per rank.

    Attributes:
        learners: one process per rank.
        directory: contains the run directory, the files with the text on stderr, and the file of the fault.
    """

    def __init__(self, arguments: list[str], ranks: int, directory: Path) -> None:
        """Start `shmppo.train` with these arguments in each rank."""
        self.directory = directory
        port = _free_port()
        self._files = [directory / f"stderr-{rank}" for rank in range(ranks)]
        self.learners = []
        for rank, path in enumerate(self._files):
            variables = rank_variables(rank, ranks, port) if ranks > 1 else {}
            with open(path, "w") as stderr:
                learner = psutil.Popen(
                    [sys.executable, "-m", "shmppo.train", *arguments],
                    cwd=ROOT,
                    env=os.environ | environment(directory) | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                )
            self.learners.append(learner)

    def wait(self, timeout: float) -> bool:
        """Wait until all learners have ended; return False after the timeout."""
        return not psutil.wait_procs(self.learners, timeout=timeout)[1]

    def running(self) -> bool:
        """Return whether all learners run."""
        return all(learner.poll() is None for learner in self.learners)

    def codes(self) -> list[int]:
        """Return the exit codes of the learners that have ended."""
        return [learner.returncode for learner in self.learners if learner.poll() is not None]

    def stderr(self) -> list[str]:
        """Return the text of each rank on stderr."""
        return [path.read_text(errors="replace") for path in self._files]


def environment(directory: Path) -> dict[str, str]:
    """Return additional environment variables of a run."""
    return {"SHMPPO_FAULT": str(directory / "fault"), MARK: str(directory), "PYTHONPATH": str(ROOT)}


def new_run(job: str, workers: int, learning: str, ranks: int, run_dir: Path) -> list[str]:
    """Return the arguments of a new run."""
    text = f"{JOBS[job]} {COMMON} --workers {workers} --learning {learning}"
    return [*text.split(), "--total-steps", str(ITERATIONS * BATCH_STEPS * ranks), "--run-dir", str(run_dir)]


def read_summary(run_dir: Path) -> Mapping[str, Any] | None:
    """Return the summary of a finished run. None: the run is not finished."""
    try:
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return None if summary["stopped_early"] else summary


def wait_iterations(run_dir: Path, running: Callable[[], bool], count: int = 1) -> bool:
    """Wait until this number of iterations is in metrics.csv; return False if the run ends before."""
    metrics, deadline = run_dir / "metrics.csv", time.monotonic() + START_TIMEOUT
    while running() and time.monotonic() < deadline:
        if metrics.exists() and metrics.read_bytes().count(b"\n") > count:
            return True
        time.sleep(0.01)
    return False


@cache
def reference(job: str, ranks: int) -> Reference:
    """Train without a disturbance and without workers."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        begin = time.monotonic()
        started = Started(new_run(job, 0, "central", ranks, run_dir), ranks, Path(directory))
        wait_iterations(run_dir, started.running)
        first = time.monotonic() - begin
        started.wait(300)
        summary = read_summary(run_dir)
        if summary is None or not summary["exact"]:
            raise RuntimeError(f"the undisturbed run of {job} with {ranks} ranks failed: {started.stderr()}")
        return Reference(summary["weights_sha256"], first)


def find_workers(learner: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes of a learner: the children that map torch's shared memory."""
    found = []
    for process in learner.children(recursive=True):
        try:
            if "/dev/shm/torch_" in Path(f"/proc/{process.pid}/maps").read_text():
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def marked_processes(directory: Path) -> list[psutil.Process]:
    """Return the running processes that belong to the run in this directory."""
    mark, found = f"{MARK}={directory}\0".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(psutil.Process(int(entry.name)))
        except (OSError, psutil.Error):
            continue
    return found


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
