"""Finds workers that make no progress."""

from __future__ import annotations

import time

import numpy as np

from shmppo.errors import WorkerError
from shmppo.lockstep.worker_process import WorkerProcess


class StallDetector:
    """Finds the stalled ones among the workers that the learner waits for.

    A worker is stalled if its row of `Control.progress` has not changed for `timeout` seconds.
    """

    def __init__(self, progress: np.ndarray, timeout: float, interval: float) -> None:
        """Create a detector that has seen no worker yet.

        Args:
            progress: [W, 2], `Control.progress`.
            timeout: in seconds.
            interval: in seconds. A longer gap between two calls counts as this, because this process has not run.
        """
        self._progress, self._seen = progress, progress.copy()
        self._timeout, self._interval = timeout, interval
        self._looked_at = time.monotonic()
        self._unchanged = np.zeros(len(progress))  # [W], seconds without progress

    def stalled(self, workers: list[WorkerProcess]) -> list[tuple[WorkerProcess, WorkerError]]:
        """Return the stalled ones of `workers`, each with its failure."""
        now, latest = time.monotonic(), self._progress.copy()
        elapsed = min(now - self._looked_at, self._interval)
        self._unchanged = np.where((latest != self._seen).any(axis=1), 0.0, self._unchanged + elapsed)
        self._looked_at, self._seen = now, latest
        return [
            (
                worker,
                WorkerError(
                    f"worker {worker.index} (pid {worker.process.pid}) has made no progress for {self._timeout:g} s; "
                    "run.log may show where it is; if its environment is that slow, raise --worker-timeout"
                ),
            )
            for worker in workers
            if self._unchanged[worker.index] >= self._timeout
        ]
