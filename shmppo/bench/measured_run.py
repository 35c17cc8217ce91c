"""What all benchmarks share: a run of the trainer itself, never a copy of its loop, and its table."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.options import (
    NetworkOptions,
    ObjectiveOptions,
    OptimizerOptions,
    TaskOptions,
    UpdateOptions,
    require,
)
from shmppo.config.train_config import TrainConfig
from shmppo.plotting.curves import read_columns
from shmppo.runs.trainer import train

INTERRUPTED = "left at the signal; what was being measured is not counted"
WARM_UP = 3  # iterations not counted: first shapes, first pages


@dataclass(frozen=True)
class JobOptions(OptimizerOptions, ObjectiveOptions, UpdateOptions, NetworkOptions, TaskOptions):
    """What is trained: the fields of TrainConfig but those of processes and reports, which the benchmark chooses."""

    def config(self, **changes: Any) -> TrainConfig:
        """The configuration with some fields changed. Raises ConfigError if it cannot run."""
        own = {field.name for field in dataclasses.fields(TrainConfig)}
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name in own}
        return TrainConfig(**fields | changes)

    def with_envs(self, num_envs: int, **changes: Any) -> TrainConfig:
        """`config` with another number of environments and as many steps per minibatch as before, as near as can be."""
        minibatches = max(1, round(self.minibatches * num_envs / self.num_envs))
        return self.config(**{"num_envs": num_envs, "minibatches": minibatches} | changes)


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run: its summary, its metrics.csv, and step_times.csv where it was asked for."""

    summary: dict[str, Any]
    columns: dict[str, np.ndarray]
    """Columns of metrics.csv, [iterations]."""
    step_times: dict[str, np.ndarray]
    """Columns of step_times.csv, [N]; empty without --step-times."""

    def median(self, column: str) -> float:
        """Median over the iterations after the first WARM_UP."""
        return float(np.median(self.columns[column][WARM_UP:]))


def measured_run(config: TrainConfig, iterations: int) -> MeasuredRun:
    """Train for some iterations, the first WARM_UP of which are not counted, in a temporary directory.

    Raises:
        ConfigError: if none would be counted, or for a configuration that cannot run.
        KeyboardInterrupt: if a signal ended it early.
    """
    require(iterations > WARM_UP, f"--iterations is {iterations}; the first {WARM_UP} are not counted, so take more")
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        steps = iterations * config.batch_steps
        summary = train(
            dataclasses.replace(config, total_steps=steps, stop_at_iteration=None, run_dir=str(run_dir), quiet=True)
        )
        if summary["iterations"] < iterations:
            raise KeyboardInterrupt
        times = read_columns(run_dir / "step_times.csv") if config.step_times else {}
        return MeasuredRun(summary, read_columns(run_dir / "metrics.csv"), times)
