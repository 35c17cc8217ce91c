"""A short training run that is timed. All benchmarks use it."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.plotting.curves import read_columns
from shmppo.runs.launch import train
from shmppo.utils.phase_timer import LEARNING, PHASES, SAMPLING

PARTS = ("sampling", "optimization", "communication", "waiting", "other")
"""Parts into which the time of an iteration is split."""
WARM_UP = 3  # iterations that are not counted: they touch new memory pages and see tensor shapes for the first time


@dataclass(frozen=True)
class MeasuredRun:
    """The files of a finished run: summary.json and metrics.csv."""

    summary: dict[str, Any]
    """Content of summary.json."""
    columns: dict[str, np.ndarray]
    """Columns of metrics.csv, [iterations]."""

    def median(self, column: str) -> float:
        """Return the median over the iterations after the warm-up."""
        return float(np.median(self.columns[column][WARM_UP:]))

    def parts(self) -> dict[str, float]:
        """Split the seconds of an iteration into PARTS."""
        seconds = {phase: self.median(f"{phase}_seconds") for phase in PHASES}
        signals = min(self.median("sync_seconds"), seconds["wait"])
        return {
            "sampling": sum(seconds[phase] for phase in SAMPLING),
            "optimization": sum(seconds[phase] for phase in LEARNING),
            "communication": seconds["publish"] + seconds["reduce"] + signals,
            "waiting": seconds["wait"] - signals,
            "other": seconds["other"] + seconds["evaluation"],
        }


def measured_run(config: TrainConfig, iterations: int) -> MeasuredRun:
    """Train for a number of iterations in a temporary directory. The first WARM_UP iterations are not counted.

    Raises:
        ConfigError: if no iteration would be counted, or if the configuration cannot run.
        KeyboardInterrupt: if a signal ended the run early.
    """
    require(
        iterations > WARM_UP,
        f"--iterations is {iterations}; it must be above {WARM_UP}, because the first {WARM_UP} are not counted",
    )
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        steps = iterations * config.batch_steps
        changes: dict[str, Any] = {"stop_at_iteration": None, "stop_when": (), "quiet": True, "check_determinism": 0}
        summary = train(dataclasses.replace(config, total_steps=steps, run_dir=str(run_dir), **changes))
        if summary["iterations"] < iterations:
            raise KeyboardInterrupt
        return MeasuredRun(summary, read_columns(run_dir / "metrics.csv"))
