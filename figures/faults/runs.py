"""Runs of small jobs as processes, and what an undisturbed run of each gives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from figures.common.jobs import rank_variables
from figures.common.paths import ROOT

JOBS = {
    "CartPole, LSTM": "--env CartPole-v1 --hide-obs 1 3",
    "Pendulum, GRU": "--env Pendulum-v1 --hide-obs 2 --core gru",
    "InvertedPendulum, stepped together": "--env InvertedPendulum-v5 --env-backend mujoco",
    "HalfCheetah, no memory": "--env HalfCheetah-v5 --core none --eval-every 4 --eval-episodes 1",
}
"""Flags of each job."""
ITERATIONS = 24
BATCH_STEPS = 6 * 64
COMMON = (
    "--num-envs 6 --rollout-steps 64 --minibatches 2 --epochs 2 --grad-shards 4 --hidden-size 16 --encoder-sizes 16 "
    "--seq-len 8 --quiet --checkpoint-every 3 --worker-timeout 8"
)
MARK = "SHMPPO_CAMPAIGN"
"""Environment variable with the directory of a run. All processes of the run inherit it."""
START_SECONDS = 300.0


class Run:
    """The processes of a run, one learner per rank.

    Attributes:
        learners: one process per rank.
        run_dir: directory of the run.
    """

    def __init__(self, arguments: str, ranks: int, directory: Path) -> None:
        """Start `shmppo.train` in each rank. directory: contains the run directory and the texts on stderr."""
        self.run_dir, self._directory = directory / "run", directory
        port = _free_port()
        self.learners = []
        for rank in range(ranks):
            variables = {MARK: str(directory)} | (rank_variables(rank, ranks, port) if ranks > 1 else {})
            with open(directory / f"stderr-{rank}", "w") as stderr:
                learner = psutil.Popen(
                    [sys.executable, "-m", "shmppo.train", *arguments.split()],
                    cwd=ROOT, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=stderr,
                )  # fmt: skip
            self.learners.append(learner)

    def running(self) -> bool:
        """Whether all learners run."""
        return all(learner.poll() is None for learner in self.learners)

    def wait(self, timeout: float) -> list[int] | None:
        """Wait until all learners have ended. Returns their exit codes, or None after the timeout."""
        _, left = psutil.wait_procs(self.learners, timeout=timeout)
        return None if left else [learner.returncode for learner in self.learners]

    def wait_iterations(self, count: int) -> bool:
        """Wait until this number of iterations is in metrics.csv. Returns False if the run ends before."""
        metrics, deadline = self.run_dir / "metrics.csv", time.monotonic() + START_SECONDS
        while self.running() and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_bytes().count(b"\n") > count:
                return True
            time.sleep(0.01)
        return False

    def stderr(self) -> list[str]:
        """Return the text of each rank on stderr."""
        return [path.read_text(errors="replace") for path in sorted(self._directory.glob("stderr-*"))]

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run, or None."""
        with suppress(OSError, json.JSONDecodeError):
            summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
            return summary if summary["env_steps"] >= ITERATIONS * BATCH_STEPS * len(self.learners) else None
        return None

    def workers(self, rank: int) -> list[psutil.Process]:
        """Return the workers of a rank: the children of its learner that map torch's shared memory."""
        found = []
        for process in self.learners[rank].children(recursive=True):
            with suppress(OSError, psutil.Error):
                if "/dev/shm/torch_" in Path(f"/proc/{process.pid}/maps").read_text():
                    found.append(process)
        return found

    def kill_left(self, timeout: float) -> list[str]:
        """Wait for all processes of the run. Kills those left after the timeout, and returns their commands."""
        mark, left = f"{MARK}={self._directory}\0".encode(), []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    left.append(process)
        commands = []
        for process in psutil.wait_procs(left, timeout=timeout)[1]:
            with suppress(psutil.Error):
                commands.append(" ".join(process.cmdline())[:80])
                process.kill()
        return commands


def new_run(job: str, ranks: int, workers: int, learning: str, directory: Path) -> str:
    """Return the arguments of a new run."""
    steps = ITERATIONS * BATCH_STEPS * ranks
    own = f"--workers {workers} --learning {learning} --total-steps {steps} --run-dir {directory / 'run'}"
    return f"{JOBS[job]} {COMMON} {own}"


@cache
def reference(job: str, ranks: int) -> dict[str, Any]:
    """Train without a disturbance and without workers. Returns the summary."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(new_run(job, ranks, 0, "central", Path(directory)), ranks, Path(directory))
        run.wait(START_SECONDS)
        summary = run.summary()
        if summary is None or summary["exact"] is False:
            raise RuntimeError(f"the undisturbed run of {job} with {ranks} ranks failed: {run.stderr()}")
        return summary


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
