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

from shmppo.config import TrainConfig
from shmppo.layout import Arena
from shmppo.ranks import Ranks
from shmppo.timers import PHASES

log = logging.getLogger("shmppo.report")

GLOSSARY: dict[str, str] = {
    "iteration": "iterations finished",
    "env_steps": "environment steps finished, over all environments",
    "wall_seconds": "seconds in the training loop so far",
    "steps_per_second": "environment steps per second of this iteration",
    "episodes": "episodes finished so far",
    "bad_episodes": "episodes given up so far at a step that failed (--skip-bad-episodes), not counted elsewhere",
    "return_mean_100": "mean undiscounted return of the last 100 finished episodes",
    "length_mean_100": "mean length of the last 100 finished episodes, in steps",
    "policy_loss": "policy loss, mean over the update's minibatches",
    "value_loss": "½(V − R)², mean over the update's minibatches",
    "entropy": "policy entropy in nats, mean over the update's minibatches",
    "kl": "KL(old ‖ new) in nats by the k3 estimate, with `--objective penalty` in closed form; mean over the update's "
    "minibatches, each before its step",
    "kl_last_epoch": "the same over the update's last M minibatches, what β and `--lr-schedule kl-adaptive` go by",
    "clip_fraction": "share of ratios outside 1 ± clip, mean over the update's minibatches",
    "gradient_norm": "L2 norm of the gradient before clipping, mean over the update's minibatches",
    "first_log_ratio": "largest |log ratio| at the update's first minibatch: disagreement of acting and learning",
    "optimiser_steps": "optimiser steps taken by the update; fewer than epochs × minibatches after a target-KL stop",
    "explained_variance": "1 − Var(target − value) / Var(target) over the rollout",
    "state_drift": "root mean square change of stored states' numbers by a refresh, mean over the update's refreshes",
    "learning_rate": "step size of this iteration",
    "clip_range": "clip range of this iteration",
    "entropy_coef": "weight of the entropy bonus in this iteration",
    "penalty_coef": "β of `--objective penalty` in this iteration",
    "handshake_seconds": "seconds of this iteration spent on signalling workers and hearing from them",
    "collect_seconds": "seconds of this iteration until the slowest worker had sampled its part",
    "exchange_seconds": "seconds of this iteration in exchanges with the other ranks, waiting for them included",
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

    def add_rollout(self, arena: Arena, first_env: int, ranks: Ranks) -> int:
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


def _ranks_text(config: TrainConfig) -> list[str]:
    """What one rank and all together work on, where there are several."""
    if config.ranks == 1:
        return []
    return [
        f"ranks          {config.ranks}, each {config.num_envs} environments and {config.rank_steps:,} steps an "
        f"iteration: {config.ranks * config.num_envs} and {config.batch_steps:,} together"
    ]


def summary_text(config: TrainConfig, summary: dict[str, Any], run_dir: Path) -> str:
    """What is printed at the end of a run."""
    phases = summary["phase_seconds"]
    last = min(summary["episodes"], 100)
    whole = sum(phases[phase] for phase in PHASES) or 1.0
    shares = ", ".join(f"{phase} {phases[phase] / whole:.0%}" for phase in PHASES if phases[phase] / whole >= 0.005)
    mean = summary["return_mean_100"]
    returns = "no episode has ended" if mean is None else f"{mean:.1f} (mean of the last {last} episodes)"
    lines = [
        f"run            {run_dir}",
        *_ranks_text(config),
        f"return         {returns}",
        f"steps          {summary['env_steps']:,} in {summary['wall_seconds']:.1f} s: "
        f"{summary['steps_per_second']:,.0f} steps/s",
        f"time           {shares}",
        f"memory         {summary['peak_memory_bytes'] / 2**20:.0f} MiB at most in all processes, "
        f"{summary['shared_memory_bytes'] / 2**20:.1f} MiB of it the arena",
        f"weights        sha256 {summary['weights_sha256'][:16]}…{'' if summary['exact'] else ' (not exact)'}",
    ]
    if summary["inexact_reasons"]:
        lines.append("not exact      " + "; ".join(summary["inexact_reasons"]))
    if config.shards == 1 and config.num_workers > 1:
        steps = config.rank_steps // config.minibatches
        lines.append(
            f"note           a minibatch has {steps} steps: one gradient shard, so the learner computes it alone"
        )
    if times := summary.get("step_times"):
        lines.append(
            f"slowest        environment {times['slowest_environment']} (worker {times['slowest_worker']}): "
            f"{times['slowest_mean_seconds'] * 1e3:.3g} ms a step, 99 % in {times['slowest_q99_seconds'] * 1e3:.3g}; "
            f"mean of all {times['mean_seconds'] * 1e3:.3g}"
        )
    if summary["worker_restarts"]:
        lines.append(f"workers        {summary['worker_restarts']} replaced")
    more = ""
    if not summary["stopped_early"]:
        steps = 2 * summary["env_steps"]
        flags = ["--total-steps", *(["--anneal-steps"] if steps > config.learns_until else [])]
        more = "".join(f" {flag} {steps}" for flag in flags)
    lines.append(f"next           python -m shmppo.evaluate {run_dir}")
    lines.append(f"               python -m shmppo.plot {run_dir}")
    lines.append(f"go on          python -m shmppo.train --resume {run_dir}{more}")
    return "\n".join(lines)
