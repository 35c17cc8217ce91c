"""What a run shows and records while it trains: metrics, console, loggers, evaluations, step times, memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.console import ConsoleDisplay
from shmppo.loggers.metrics import MetricsFile
from shmppo.loggers.step_times import StepTimes
from shmppo.loggers.trackers import LoggerList
from shmppo.ppo.kl_profile import KLProfile, write_profile
from shmppo.ppo.learner import Learner
from shmppo.runs.evaluator import Evaluator
from shmppo.runs.run_directory import METRICS, SUMMARY
from shmppo.utils import machine
from shmppo.utils.files import warn_on_os_error, write_json

MEMORY_EVERY = 100  # iterations between two samples of the memory in use; one costs about 5 ms a process


class Outputs:
    """The outputs of one run. `close` ends them.

    Attributes:
        metrics: metrics.csv.
        peak_memory: bytes of all processes together, the largest sample so far.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, iteration: int, loggers: LoggerList) -> None:
        """iteration: from which the run continues."""
        self._config, self._run_dir, self._loggers = config, run_dir, loggers
        self._step_times = StepTimes(config.num_envs) if config.step_times else None
        self._evaluator: Evaluator | None = None
        self._memory = self.peak_memory = 0
        with ExitStack() as stack:  # closed here if a step fails
            self.metrics = stack.enter_context(closing(MetricsFile(run_dir / METRICS, iteration)))
            self._display = stack.enter_context(closing(ConsoleDisplay(config, run_dir)))
            stack.enter_context(closing(loggers))
            self._open = stack.pop_all()

    def start(self, iteration: int) -> None:
        """Start the loggers and the evaluator, when everything else runs."""
        self._loggers.start(self._run_dir, self._config, iteration)
        if self._config.eval_every is not None:
            self._evaluator = Evaluator(self._config, self._run_dir, iteration, self._loggers)
            self._open.callback(self._evaluator.close)

    def log(self, row: dict[str, float], learner: Learner, step_seconds: np.ndarray) -> bool:
        """Give a finished iteration to all outputs but the console; returns whether the callback asks to stop.

        Args:
            step_seconds: [T, N] of every environment step, with --step-times.
        """
        if self._step_times is not None:
            self._step_times.add(step_seconds)
        if learner.kl_profile is not None:
            self._write_profile(int(row["iteration"]), learner.kl_profile)
        self._loggers.log(row)
        asked_to_stop = self._loggers.asks_to_stop(row)
        if self._evaluator is not None:
            self._evaluator.after(int(row["iteration"]), int(row["env_steps"]), learner)
        return asked_to_stop

    def _write_profile(self, iteration: int, profile: KLProfile) -> None:
        with warn_on_os_error():
            write_profile(self._run_dir, iteration, profile)

    def show(self, row: dict[str, float], worker_seconds: Sequence[float], pids: list[int], *, last: bool) -> None:
        """Update the console.

        Args:
            worker_seconds: [W] seconds that each worker took for its part of the rollout.
            pids: of the workers.
        """
        if row["iteration"] == 1 or row["iteration"] % MEMORY_EVERY == 0:
            self.sample_memory(pids)
        self._display.show(row, worker_seconds, self._memory, last=last)

    def sample_memory(self, pids: list[int]) -> None:
        """Measure the memory of all processes. pids: of the workers."""
        evaluators = self._evaluator.pids if self._evaluator is not None else []
        self._memory = machine.proportional_memory([os.getpid(), *pids, *evaluators])
        self.peak_memory = max(self.peak_memory, self._memory)

    def finish(self, summary: dict[str, Any], worker_of: list[int], *, wait: bool) -> None:
        """Write summary.json, and tell the loggers that the run has ended.

        Args:
            worker_of: [N], the worker of each environment.
            wait: for an evaluation in progress.
        """
        if self._step_times is not None:
            with warn_on_os_error():
                self._step_times.write(self._run_dir, worker_of)
            summary["step_times"] = self._step_times.summary(worker_of)
        with warn_on_os_error():
            write_json(self._run_dir / SUMMARY, summary)
        if self._evaluator is not None:
            self._evaluator.finish(wait=wait)
        self._loggers.finish(summary)

    def close(self) -> None:
        """End the evaluator, close the files, and restore the terminal."""
        self._open.close()
