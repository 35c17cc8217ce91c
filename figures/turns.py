"""Contenders that run in turns of seconds: a machine that slows down for a minute slows all of them down alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from shmppo.plotting.curves import read_columns
from shmppo.runs.run_directory import METRICS

PATIENCE_SECONDS = 120.0
"""Until a run's first rows are written."""
PORT = 29611


class Contender:
    """Runs that work at the same time, in process groups of their own, stopped except in their turn."""

    def __init__(self, commands: Sequence[Sequence[str]], directory: Path, *, ranks: bool = False) -> None:
        """commands: arguments of `python -m shmppo.train`; ranks: they are the ranks of one run."""
        runs = [directory / f"run{i}" for i in range(len(commands))]
        self._runs = runs[:1] if ranks else runs  # those that count steps
        variables = [_rank(i, len(commands)) if ranks else {} for i in range(len(commands))]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "shmppo.train", *command, "--quiet", "--run-dir", str(run)],
                env=os.environ | dict(own),
                start_new_session=True,
            )
            for command, run, own in zip(commands, runs, variables, strict=True)
        ]

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args} has ended with code {process.returncode}")
            os.killpg(process.pid, number)

    def wait_running(self) -> None:
        """Return when each run has written some rows, and stop them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(self._rows(run) < 3 for run in self._runs):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no rows in {self._runs}")
            time.sleep(0.1)
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> float:
        """Go on for some seconds; steps per second of all runs together, over the iterations begun and ended in it."""
        before = [self._rows(run) for run in self._runs]
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        return sum(self._rate(run, rows + 1) for run, rows in zip(self._runs, before, strict=True))

    def columns(self) -> dict[str, np.ndarray]:
        """metrics.csv of the first run."""
        return read_columns(self._runs[0] / METRICS)

    def _rate(self, run: Path, since: int) -> float:
        """since: rows that were there before, or were begun before."""
        columns = read_columns(run / METRICS)
        steps, wall = columns["env_steps"][since - 1 :], columns["wall_seconds"][since - 1 :]
        return float((steps[-1] - steps[0]) / (wall[-1] - wall[0]))

    def _rows(self, run: Path) -> int:
        file = run / METRICS
        return max(file.read_bytes().count(b"\n") - 1, 0) if file.exists() else 0

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _rank(rank: int, size: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    world = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": PORT, "RANK": rank, "LOCAL_RANK": rank}
    return {name: str(number) for name, number in world.items()} | {"MASTER_ADDR": "127.0.0.1"}


@contextmanager
def started(
    contenders: Mapping[str, Sequence[Sequence[str]]], directory: Path, ranks: Sequence[str] = ()
) -> Iterator[dict[str, Contender]]:
    """Contenders by name and commands, started and stopped; `ranks`: which of them are one run of several ranks."""
    with ExitStack() as stack:
        running = {}
        for name, commands in contenders.items():
            contender = Contender(commands, directory / name.replace(" ", "_"), ranks=name in ranks)
            stack.callback(contender.end)
            contender.wait_running()
            running[name] = contender
        yield running
