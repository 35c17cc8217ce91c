"""Times of all environment steps, to find slow environments and workers.

They are recorded only with `--step-times`. Without it, nothing is timed.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from shmppo.utils.files import replaced_file

STEP_TIMES = "step_times.csv"
QUANTILES = (0.5, 0.9, 0.99)
GLOSSARY: dict[str, str] = {
    "environment": "index of the environment",
    "worker": "index of its worker",
    "steps": "steps timed",
    "mean_seconds": "mean",
    "q50_seconds": "median",
    "q90_seconds": "90 % quantile",
    "q99_seconds": "99 % quantile",
    "largest_seconds": "largest time",
}
"""Every column of step_times.csv."""
PER_DECADE = 20  # histogram bins per factor of 10; a quantile is then accurate to 6 %
_EDGES = np.logspace(-7, 4, 11 * PER_DECADE + 1)  # seconds
_MIDDLES = np.sqrt(_EDGES[1:] * _EDGES[:-1])


class StepTimes:
    """Statistics of the step times of each environment: a histogram, the sum, and the maximum."""

    def __init__(self, num_envs: int) -> None:
        self.counts = np.zeros((num_envs, len(_MIDDLES)), np.int64)
        self.seconds = np.zeros(num_envs)
        self.largest = np.zeros(num_envs)

    def add(self, step_seconds: np.ndarray) -> None:
        """Add the times of one rollout, [T, N] seconds."""
        bins = np.clip(np.searchsorted(_EDGES, step_seconds) - 1, 0, len(_MIDDLES) - 1)
        np.add.at(self.counts, (np.arange(bins.shape[1]), bins), 1)
        self.seconds += step_seconds.sum(axis=0, dtype=np.float64)
        self.largest = np.maximum(self.largest, step_seconds.max(axis=0))

    def quantile(self, q: float) -> np.ndarray:
        """Return quantile q of each environment's step time, [N] seconds, with the accuracy of a histogram bin."""
        total = np.cumsum(self.counts, axis=1)
        quantiles: np.ndarray = _MIDDLES[(total >= q * total[:, -1:]).argmax(axis=1)]
        return quantiles

    def rows(self, worker_of: list[int]) -> list[dict[str, float]]:
        """Make one row per environment: its worker, its number of steps, and statistics of the seconds per step.

        Args:
            worker_of: [N] the worker of each environment.
        """
        steps = self.counts.sum(axis=1)
        quantiles = {f"q{q * 100:g}_seconds": self.quantile(q) for q in QUANTILES}
        return [
            {"environment": n, "worker": worker_of[n], "steps": int(steps[n])}
            | {"mean_seconds": self.seconds[n] / max(steps[n], 1)}
            | {name: float(values[n]) for name, values in quantiles.items()}
            | {"largest_seconds": float(self.largest[n])}
            for n in range(len(steps))
        ]

    def summary(self, worker_of: list[int]) -> dict[str, float]:
        """Return the row of the environment with the largest total time, and the mean over all environments."""
        row = self.rows(worker_of)[int(self.seconds.argmax())]
        return {f"slowest_{k}": v for k, v in row.items()} | {"mean_seconds": self.seconds.sum() / self.counts.sum()}

    def write(self, run_dir: Path, worker_of: list[int]) -> None:
        """Write step_times.csv. For `worker_of`, see `rows`."""
        rows = self.rows(worker_of)
        with replaced_file(run_dir / STEP_TIMES) as temporary, open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, list(GLOSSARY))
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" for k, v in row.items()} for row in rows)
