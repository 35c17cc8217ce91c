"""The metrics of a run: their meaning, and the files metrics.csv and eval.csv."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from shmppo.loggers.checked_rows import (
    ROW_CHECKSUM,
    TEXT_COLUMNS,
    WEIGHTS_HASH,
    CheckedRows,
    header_line,
    read_checked_rows,
    row_line,
)
from shmppo.utils.files import FailedWrites, replaced_file
from shmppo.utils.phase_timer import PHASES

log = logging.getLogger(__name__)

GLOSSARY: dict[str, str] = {
    "iteration": "finished iterations",
    "env_steps": "finished environment steps of all environments",
    "wall_seconds": "seconds spent in the training loop so far",
    "steps_per_second": "environment steps per second in this iteration",
    "episodes": "finished episodes",
    "failed_episodes": "episodes that `--skip-bad-episodes` ended at a failed step; no other metric counts them",
    "return_mean_100": "mean undiscounted return of the last 100 finished episodes",
    "length_mean_100": "mean length of the last 100 finished episodes, in steps",
    "policy_loss": "policy loss, mean over the minibatches of the update",
    "value_loss": "½(V − R)², mean over the minibatches of the update",
    "entropy": "policy entropy in nats, mean over the minibatches of the update",
    "approx_kl": "mean KL(old ‖ new) in nats over the minibatches, each measured before its optimizer step; estimated "
    "by ratio − 1 − log ratio (k3), or in closed form with `--objective penalty`",
    "approx_kl_last_epoch": "the same over the last M minibatches; β and `--lr-schedule kl-adaptive` adapt to it",
    "clip_fraction": "fraction of ratios outside 1 ± clip range, mean over the minibatches of the update",
    "gradient_norm": "L2 norm of the gradient before clipping, mean over the minibatches of the update",
    "first_log_ratio": "largest |log ratio| in the first minibatch: the difference between acting and learning",
    "optimizer_steps": "optimizer steps of the update; fewer than epochs × minibatches after a target-KL stop",
    "explained_variance": "1 − Var(target − value) / Var(target) over the rollout",
    "state_drift": "root mean square change of stored recurrent states by a refresh, mean over the refreshes",
    "learning_rate": "learning rate of this iteration",
    "clip_range": "clip range of this iteration",
    "entropy_coef": "coefficient of the entropy bonus in this iteration",
    "penalty_coef": "β of `--objective penalty` in this iteration",
    "sync_seconds": "seconds spent on sending commands to workers and receiving acknowledgements",
    "collect_seconds": "seconds until the slowest worker had finished its part of the rollout",
    "allreduce_seconds": "seconds of collective operations with other ranks, including the wait for them",
    "straggler_wait": "time spent waiting for the slowest worker, mean over workers, as a fraction of its time",
    "preempted_steps": "steps that are missing from this rollout because of `--preempt-fraction`, over all ranks",
    "slowest_worker": "index of the worker that needed the most time for its part of the rollout",
    **{f"{phase}_seconds": f"seconds of this iteration in phase {phase}" for phase in PHASES},
    WEIGHTS_HASH: "first 16 digits of the SHA-256 of the weights after this iteration",
    ROW_CHECKSUM: "checksum of this row and of the checksum of the row before",
}
"""Every column of metrics.csv."""

EVALUATION_GLOSSARY: dict[str, str] = {
    "iteration": "finished iterations when the weights were copied",
    "env_steps": "finished environment steps at that time",
    "eval_return_mean": "mean undiscounted return of the episodes, with the most likely actions",
    "eval_return_std": "standard deviation of the returns over the episodes",
    "eval_return_min": "smallest return",
    "eval_return_max": "largest return",
    "eval_length_mean": "mean length of the episodes, in steps",
    "eval_episodes": "number of episodes",
    "eval_seconds": "duration of the evaluation in seconds; training continues meanwhile",
    ROW_CHECKSUM: "checksum of this row and of the checksum of the row before",
}
"""Every column of eval.csv."""

SUMMARY_GLOSSARY: dict[str, str] = {
    "run_dir": "directory of the run",
    "config": "the resolved configuration",
    "weights_sha256": "hash of the weights; null if an error ended the run during an update",
    "exact": "whether the determinism guarantee holds for this run, as far as shmppo can tell; null: the check of the "
    "environment has not finished",
    "inexact_reasons": "why it does not hold",
    "environment_check": "whether the environment has the same bits for the same seed and actions, in the steps that "
    "`--check-determinism` compares: `passed`, `failed`, `not finished`, or `none` without the check",
    "initial_weights": "path, iteration, and hash of the weights of `--init-from`; null without it",
    "env_steps": "environment steps of all ranks",
    "iterations": "iterations finished",
    "episodes": "episodes finished",
    "failed_episodes": "episodes that `--skip-bad-episodes` ended at a failed step",
    "return_mean_100": "mean return of the last 100 finished episodes; null if none has finished",
    "best_return": "highest mean return at which a checkpoint was saved; null if no episode had finished",
    "best_checkpoint": "file of the best checkpoint in the run directory; null if there is none",
    "workers": "number of workers of one rank",
    "worker_restarts": "workers that were replaced",
    "evaluation_given_up": "why the evaluation at the end was given up, null if it was not",
    "num_envs": "number of environments of one rank",
    "ranks": "number of ranks",
    "wall_seconds": "seconds in the training loop",
    "steps_per_second": "`env_steps` / `wall_seconds`",
    "phase_seconds": "seconds in each phase, and the totals of sampling, learning, and communication",
    "sync_seconds": "seconds spent on signaling workers",
    "peak_memory_bytes": "largest memory of all processes together",
    "shared_memory_bytes": "size of the shared buffers",
    "stopped_early": "whether the run ended before `--total-steps`",
    "error": "the error that ended the run; null if there was none",
    "checksum": "SHA-256 of all other keys; only in the file",
}
"""Every key of summary.json."""

TRACKER_GROUPS: dict[str, tuple[str, ...]] = {
    "rollout": ("episodes", "failed_episodes", "return_mean_100", "length_mean_100", "preempted_steps"),
    "losses": ("policy_loss", "value_loss", "entropy", "explained_variance", "gradient_norm"),
    "policy": (
        "approx_kl", "approx_kl_last_epoch", "clip_fraction", "first_log_ratio", "optimizer_steps", "state_drift",
        "learning_rate", "clip_range", "entropy_coef", "penalty_coef",
    ),
    "time": (
        "wall_seconds", "steps_per_second", "sync_seconds", "collect_seconds", "allreduce_seconds", "straggler_wait",
        "slowest_worker", *(f"{phase}_seconds" for phase in PHASES),
    ),
    "eval": tuple(name for name in EVALUATION_GLOSSARY if name.startswith("eval_")),
}  # fmt: skip
"""The group of each metric in trackers, which show `approx_kl` as `policy/approx_kl`."""

TIMED_COLUMNS = TRACKER_GROUPS["time"]
"""Columns of metrics.csv that depend on the clock. All others are functions of the configuration, except the chained
ROW_CHECKSUM."""

_TRACKER_NAMES = {name: f"{group}/{name}" for group, names in TRACKER_GROUPS.items() for name in names}


def tracker_name(name: str) -> str:
    """Return the name of a metric in trackers: with its group, or unchanged for iteration and env_steps."""
    return _TRACKER_NAMES.get(name, name)


class MetricsFile:
    """The file metrics.csv or eval.csv. If the disk is full, rows are kept in memory and written later."""

    def __init__(
        self,
        path: Path,
        iteration: int,
        columns: Sequence[str] = tuple(GLOSSARY),
        failed_writes: FailedWrites | None = None,
    ) -> None:
        """Open the file.

        Args:
            path: the file.
            iteration: number of finished iterations. Rows of later iterations are removed; 0 removes all rows.
            columns: names of the columns. The last one is ROW_CHECKSUM.
            failed_writes: records whether rows can be written. None: an own one, which only warns.

        Raises:
            ConfigError: if a row before the last one is damaged, or if the file has other columns.
            OSError: if the file cannot be written.
        """
        self._path = path
        self._failed_writes = failed_writes or FailedWrites()
        self._columns = columns
        kept = CheckedRows([], [], torn=False)
        if iteration and path.exists():
            kept = read_checked_rows(path, columns)
            if kept.torn:
                log.warning("%s: its last row is incomplete and is removed", path)
            kept = kept.up_to(iteration)
        with replaced_file(path) as temporary:
            temporary.write_bytes(b"".join([header_line(columns), *kept.lines]))
        self._checksum = kept.rows[-1][ROW_CHECKSUM] if kept.rows else ""
        self._file: BinaryIO = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by close)
        self._pending = b""  # text that is not in the file yet

    def write(self, row: dict[str, float], weights_hash: str = "") -> None:
        """Append a row. If it cannot be written now, log a warning and keep it.

        Args:
            row: a value for every column, except those of TEXT_COLUMNS.
            weights_hash: the value of WEIGHTS_HASH, if the file has this column.
        """
        cells = [weights_hash if name in TEXT_COLUMNS else f"{row[name]:.10g}" for name in self._columns[:-1]]
        line, self._checksum = row_line(cells, self._checksum)
        self._pending += line
        self._write_pending()

    def _write_pending(self) -> None:
        with self._failed_writes.recorded(self._path.name):
            while self._pending:  # if the disk becomes full, only a part is written
                self._pending = self._pending[self._file.write(self._pending) :]

    def write_again(self) -> None:
        """Write all rows to a new file of the same name, after the file was removed.

        A file that was removed can be read as long as it is open. If it cannot, log a warning. The rows are lost then.
        """
        try:
            self._file.seek(0)
            content = self._file.read()
            with replaced_file(self._path) as temporary:
                temporary.write_bytes(content)
            file: BinaryIO = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            log.warning("the rows of %s are lost: %s", self._path.name, error)
            return
        self._file.close()
        self._file = file

    def close(self) -> None:
        """Close the file. If the remaining rows cannot be written, log a warning. They are lost."""
        self._write_pending()
        if self._pending:
            log.warning("%s: the last rows are not written", self._path.name)
        self._file.close()
