"""What a run tells: the table of logged numbers, metrics.csv, the summary."""

from __future__ import annotations

import csv
import logging
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.utils.phase_timer import PHASES

log = logging.getLogger(__name__)

GLOSSARY: dict[str, str] = {
    "iteration": "iterations finished",
    "env_steps": "environment steps finished, over all environments",
    "wall_seconds": "seconds in the training loop so far",
    "steps_per_second": "environment steps per second of this iteration",
    "episodes": "episodes finished so far",
    "failed_episodes": "episodes given up so far at a step that failed (--skip-bad-episodes), not counted elsewhere",
    "return_mean_100": "mean undiscounted return of the last 100 finished episodes",
    "length_mean_100": "mean length of the last 100 finished episodes, in steps",
    "policy_loss": "policy loss, mean over the update's minibatches",
    "value_loss": "½(V − R)², mean over the update's minibatches",
    "entropy": "policy entropy in nats, mean over the update's minibatches",
    "approx_kl": "KL(old ‖ new) in nats by the k3 estimate, with `--objective penalty` in closed form; mean over the "
    "update's minibatches, each before its step",
    "approx_kl_last_epoch": "the same over the update's last M minibatches, what β and `--lr-schedule kl-adaptive` go by",
    "clip_fraction": "share of ratios outside 1 ± clip, mean over the update's minibatches",
    "gradient_norm": "L2 norm of the gradient before clipping, mean over the update's minibatches",
    "first_log_ratio": "largest |log ratio| at the update's first minibatch: disagreement of acting and learning",
    "optimizer_steps": "optimizer steps taken by the update; fewer than epochs × minibatches after a target-KL stop",
    "explained_variance": "1 − Var(target − value) / Var(target) over the rollout",
    "state_drift": "root mean square change of stored states' numbers by a refresh, mean over the update's refreshes",
    "learning_rate": "step size of this iteration",
    "clip_range": "clip range of this iteration",
    "entropy_coef": "weight of the entropy bonus in this iteration",
    "penalty_coef": "β of `--objective penalty` in this iteration",
    "sync_seconds": "seconds of this iteration spent on signalling workers and hearing from them",
    "collect_seconds": "seconds of this iteration until the slowest worker had sampled its part",
    "allreduce_seconds": "seconds of this iteration in exchanges with the other ranks, waiting for them included",
    "straggler_wait": "share of the sampling for which a worker waits for the slowest, mean over the workers",
    "preempted_steps": "steps that this iteration's rollout lacks because of `--preempt-fraction`, over all ranks",
    "slowest_worker": "index of the worker that took longest to sample its part",
    **{f"{phase}_seconds": f"seconds of this iteration in phase {phase}" for phase in PHASES},
}
"""Every column of metrics.csv."""

EVALUATION_GLOSSARY: dict[str, str] = {
    "iteration": "iterations finished when the weights were copied",
    "env_steps": "environment steps finished by then",
    "eval_return_mean": "mean undiscounted return of the episodes, most likely actions",
    "eval_return_std": "standard deviation of the returns over the episodes",
    "eval_return_min": "smallest return",
    "eval_return_max": "largest return",
    "eval_length_mean": "mean length of the episodes, in steps",
    "eval_episodes": "episodes played",
    "eval_seconds": "seconds that it took, beside the training",
}
"""Every column of eval.csv."""


class EpisodeStatistics:
    """Returns and lengths of the last 100 finished episodes, in the order of (step, environment)."""

    def __init__(self) -> None:
        self.count = 0
        self.returns: deque[float] = deque(maxlen=100)
        self.lengths: deque[float] = deque(maxlen=100)

    def add(self, returns: list[float], lengths: list[int]) -> None:
        self.count += len(returns)
        self.returns.extend(returns)
        self.lengths.extend(lengths)

    def add_rollout(self, arena: SharedBuffers, first_env: int, ranks: ProcessGroup) -> int:
        """Add what ended in the rollout in the arena, on all ranks, in the order of (step, global environment).

        Returns:
            How many of them were bad episodes, which are not added: they are booked with a length of 0.
        """
        read = arena.array
        t, n = np.nonzero(read("terminated") | read("truncated"))
        ended = np.column_stack([t, first_env + n, read("ended_return")[t, n], read("ended_length")[t, n]])
        everywhere = np.concatenate(ranks.gather_rows(ended))
        everywhere = everywhere[np.lexsort((everywhere[:, 1], everywhere[:, 0]))]
        good = everywhere[everywhere[:, 3] > 0]
        self.add(good[:, 2].tolist(), good[:, 3].astype(int).tolist())
        return len(everywhere) - len(good)

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "returns": list(self.returns), "lengths": list(self.lengths)}

    def load(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])

    @property
    def return_mean(self) -> float:
        """NaN before the first episode has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else float("nan")

    @property
    def length_mean(self) -> float:
        return sum(self.lengths) / len(self.lengths) if self.lengths else float("nan")


class MetricsFile:
    """metrics.csv or eval.csv: rows are written at once; on a full disk they wait until there is room."""

    def __init__(self, path: Path, iteration: int, columns: Sequence[str] = tuple(GLOSSARY)) -> None:
        """Cut what is there back to `iteration`, the one that the run goes on from."""
        self._name = path.name
        self._columns = columns
        kept = []
        if iteration and path.exists():
            with open(path, newline="") as file:
                whole = [row for row in csv.DictReader(file) if None not in row.values()]  # the last may be torn
                kept = [row for row in whole if int(row["iteration"]) <= iteration]
        temporary = path.with_suffix(".partial")
        with open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(kept)
        os.replace(temporary, path)
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._waiting = b""  # rows that are not in the file yet

    def write(self, row: dict[str, float]) -> None:
        """row: a value for every column."""
        self._waiting += (",".join(f"{row[name]:.10g}" for name in self._columns) + "\r\n").encode()
        try:
            written = self._file.write(self._waiting)
        except OSError as error:
            log.warning("%s: iteration %d waits to be written: %s", self._name, row["iteration"], error)
        else:
            self._waiting = self._waiting[written:]  # a disk that fills up may take a part

    def close(self) -> None:
        """Raises nothing: rows that still do not fit are lost, with a warning."""
        try:
            if self._waiting:
                self._file.write(self._waiting)
        except OSError as error:
            log.warning("%s: the last rows are not written: %s", self._name, error)
        self._file.close()
