"""Training runs that are compared with each other run interleaved, in time slices of a few seconds.

A machine that slows down for a minute then slows all of them down alike, so the ratios of their rates stay correct.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from figures.common.jobs import rank_variables
from figures.common.paths import ROOT
from shmppo.plotting.curves import read_columns
from shmppo.utils.files import complete_rows

START_TIMEOUT = 120.0  # seconds within which every run must write its first rows
SLICE_TIMEOUT = 60.0  # seconds by which a time slice may be longer than intended
MASTER_PORT = 29611


class RunGroup:
    """Training runs that execute at the same time, but only within the time slices of their group.

    Outside the slices, signals stop all processes of the group.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]], directory: Path, *, ranks: bool = False, checkout: Path = ROOT
    ) -> None:
        """Start the runs.

        Args:
            commands: for each run, the arguments of `python -m shmppo.train`.
            directory: parent of the run directories.
            ranks: whether the commands are the ranks of one run. Rank 0 then writes the metrics.
            checkout: root of the checkout whose package runs.
        """
        run_dirs = [directory / f"run{i}" for i in range(len(commands))]
        self.run_dirs = run_dirs[:1] if ranks else run_dirs
        variables = [rank_variables(i, len(commands), MASTER_PORT) if ranks else {} for i in range(len(commands))]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "shmppo.train", *command, "--quiet", "--run-dir", str(run_dir)],
                cwd=checkout,
                env=os.environ | extra,
                start_new_session=True,
            )
            for command, run_dir, extra in zip(commands, run_dirs, variables, strict=True)
        ]

    def wait_until_running(self) -> None:
        """Wait until each run has written a few rows of metrics, then stop the group."""
        deadline = time.monotonic() + START_TIMEOUT
        while any(self._row_count(run_dir) < 3 for run_dir in self.run_dirs):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no metrics in {self.run_dirs} after {START_TIMEOUT:g} s")
            time.sleep(0.1)
        self._signal(signal.SIGSTOP)

    def run_slice(self, seconds: float) -> float:
        """Let the group run for some seconds, and until each run has finished three iterations.

        Returns:
            Environment steps per second, summed over the runs. Only iterations that lie within the slice count.
        """
        before = [self._row_count(run_dir) for run_dir in self.run_dirs]
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        deadline = time.monotonic() + SLICE_TIMEOUT
        counted = list(zip(self.run_dirs, before, strict=True))
        while any(self._row_count(run_dir) < count + 3 for run_dir, count in counted):
            if time.monotonic() > deadline:
                raise RuntimeError(f"fewer than 3 iterations in {seconds + SLICE_TIMEOUT:g} s")
            time.sleep(0.05)
        self._signal(signal.SIGSTOP)
        return sum(self._rate(run_dir, count) for run_dir, count in counted)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of metrics.csv of the first run, each [iterations]."""
        return read_columns(self.run_dirs[0] / "metrics.csv")

    def kill(self) -> None:
        """Kill all processes of the group."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with code {process.returncode}")
            os.killpg(process.pid, number)

    def _rate(self, run_dir: Path, first: int) -> float:
        """Steps per second after row `first`, the row of the iteration that was in progress when the slice began."""
        rows = complete_rows(run_dir / "metrics.csv")  # not read_columns: older commits have other columns of text
        begin, end = ([float(row[name]) for name in ("env_steps", "wall_seconds")] for row in (rows[first], rows[-1]))
        return (end[0] - begin[0]) / (end[1] - begin[1])

    def _row_count(self, run_dir: Path) -> int:
        file = run_dir / "metrics.csv"
        return max(file.read_bytes().count(b"\n") - 1, 0) if file.exists() else 0


@contextmanager
def started(
    commands: Mapping[str, Sequence[Sequence[str]]],
    *,
    ranks: Sequence[str] = (),
    checkouts: Mapping[str, Path] | None = None,
) -> Iterator[dict[str, RunGroup]]:
    """Start groups of runs in a temporary directory, stopped until their first slice, and kill them at the end.

    Args:
        commands: name of each group -> the commands of its runs.
        ranks: names of the groups whose commands are the ranks of one run.
        checkouts: name of a group -> the checkout whose package it runs. Other groups run this checkout.
    """
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        groups = {}
        for name, group_commands in commands.items():
            folder, checkout = Path(directory) / name.replace(" ", "_"), (checkouts or {}).get(name, ROOT)
            group = groups[name] = RunGroup(group_commands, folder, ranks=name in ranks, checkout=checkout)
            stack.callback(group.kill)
            group.wait_until_running()
        yield groups


def rounds(groups: Mapping[str, RunGroup], count: int, seconds: float) -> list[dict[str, float]]:
    """Give each group one slice per round; return the steps per second of each group, round by round."""
    return [{name: group.run_slice(seconds) for name, group in groups.items()} for _ in range(count)]


def interleaved_rates(
    commands: Mapping[str, Sequence[Sequence[str]]],
    slices: int,
    seconds: float,
    checkouts: Mapping[str, Path] | None = None,
) -> list[dict[str, float]]:
    """Run groups of runs interleaved; return what `rounds` returns."""
    with started(commands, checkouts=checkouts) as groups:
        return rounds(groups, slices, seconds)


def spread(rates: Sequence[Mapping[str, float]], over: str, under: str) -> dict[str, float]:
    """Return the median, the lowest, and the highest ratio of two groups in the same round."""
    ratios = [rate[over] / rate[under] for rate in rates]
    numbers = {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return {name: round(ratio, 3) for name, ratio in numbers.items()}


def add_slice_flags(parser: argparse.ArgumentParser, slices: int, seconds: float) -> None:
    """Add --slices and --seconds with these defaults."""
    parser.add_argument("--slices", type=int, default=slices, help="time slices of each group of runs")
    parser.add_argument("--seconds", type=float, default=seconds, help="length of a time slice")
