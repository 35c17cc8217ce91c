"""The outputs of a run during training: metrics, console, loggers, and memory use."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.errors import printable
from shmppo.loggers.console import ConsoleDisplay
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, columns, episode_columns
from shmppo.loggers.status import RunStatus
from shmppo.loggers.trackers import LoggerList, Row
from shmppo.parallel.shared_buffers import Control
from shmppo.runs.background_check import BackgroundCheck
from shmppo.storage.history import remove_later
from shmppo.storage.run_directory import EPISODES, EVALUATIONS, METRICS, SUMMARY, MetricsFile, saving
from shmppo.utils import machine
from shmppo.utils.files import config_error_if_unwritable, write_json
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.signals import StopRequest

log = logging.getLogger(__name__)

MEMORY_EVERY = 100  # iterations between two measurements of the memory, each of which takes about 5 ms per process


class Outputs:
    """The outputs of one run. `close` ends them.

    Attributes:
        metrics: the file metrics.csv.
        episodes: the file episodes.csv.
        peak_memory: largest measured memory of all processes together, in bytes. 0 before the first measurement.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        iteration: int,
        loggers: LoggerList,
        stop: StopRequest,
        control: Control,
        check: BackgroundCheck,
    ) -> None:
        """Open metrics.csv and the console. Call this before workers start, so that the console shows their start.

        Args:
            run_dir: directory of the run.
            iteration: number of finished iterations. What was written later is removed.
            loggers: the callback and the loggers. They are closed with the outputs.
            stop: the console shows that a signal has made this request.
            control: counters of progress, which the console shows.
            check: the check of the environment, which `start` starts.

        Raises:
            ConfigError: if the directory cannot be written.
        """
        self._config, self._run_dir, self._loggers, self._check = config, run_dir, loggers, check
        self._memory = self.peak_memory = 0
        self._status = RunStatus(config, run_dir, stop, control, iteration)
        with config_error_if_unwritable(run_dir):
            # A run that is resumed after its last iteration repeats its last evaluation. That of a pause is not part of
            # an undisturbed run.
            ended = stop.made or iteration == config.last_iteration
            paused = config.eval_every is not None and iteration % config.eval_every > 0
            remove_later(run_dir, iteration, evaluated=iteration - (ended or paused))
            self.metrics = MetricsFile(run_dir / METRICS, columns(config))
            self.episodes = MetricsFile(run_dir / EPISODES, episode_columns(config))
            if config.eval_every is not None and config.rank == 0:
                self._evaluations = MetricsFile(run_dir / EVALUATIONS, tuple(EVALUATION_GLOSSARY))
        self._open = ExitStack()
        self._display = self._open.enter_context(closing(ConsoleDisplay(self._status)))
        self._open.callback(loggers.finish, None)

    def start(self, timer: PhaseTimer) -> None:
        """Start the loggers and the check of the environment. Call this after everything else.

        timer: of the learner; the console shows what the learner does.
        """
        self._status.timer = timer
        self._loggers.start(self._run_dir, self._config, self._status.iteration)
        self._open.callback(self._check.close)
        self._check.start()

    def log(self, row: Row, evaluation: Row, run: object) -> bool:
        """Write a finished iteration to all outputs except metrics.csv and the console.

        Args:
            row: its row of metrics.csv.
            evaluation: see `log_row`.
            run: what the callback gets as its second argument.

        Returns:
            Whether the callback asks to stop the run.

        Raises:
            SaveError: if a file cannot be written.
        """
        self.log_row(row, evaluation)
        asked_to_stop = self._loggers.asks_to_stop(row | evaluation, run)
        self.poll_check()
        return asked_to_stop

    def log_row(self, row: Row, evaluation: Row) -> None:
        """Give metrics to the loggers, and write those of an evaluation to eval.csv.

        Args:
            row: metrics of the iteration, at least iteration and env_steps.
            evaluation: what `Evaluations.evaluate` returned. Empty without an evaluation.
        """
        self._loggers.log(row | evaluation)
        self._status.evaluation = evaluation or self._status.evaluation
        if evaluation and self._config.rank == 0:
            self._evaluations.write({"env_steps": row["env_steps"], **evaluation})

    @property
    def evaluation(self) -> Row:
        """The row of the last evaluation in eval.csv, without NaN. Empty if this process has evaluated nothing."""
        return {name: value for name, value in self._status.evaluation.items() if value == value}

    def warn(self, text: str) -> None:
        """Show a warning, and log it. The same text is shown once."""
        if self.note(text):
            log.warning("%s", text)

    def note(self, text: str) -> bool:
        """Show a text that is in the log already. Return whether it is new."""
        new = printable(text) not in self._status.notes
        self._status.notes += [printable(text)] * new
        return new

    def poll_check(self) -> None:
        """Show the result of the check of the environment, if it has just ended with a difference."""
        if reason := self._check.poll():
            self._status.notes.append(printable(f"not exact: {reason}"))  # the check has logged it

    def show(self, row: dict[str, float], worker_seconds: Sequence[float], pids: list[int], *, last: bool) -> None:
        """Update the console.

        Args:
            row: row of metrics.csv.
            worker_seconds: [W], seconds that each worker took for its part of the rollout.
            pids: process ids of the workers.
            last: whether this is the last iteration of the run.
        """
        if not self._memory or row["iteration"] % MEMORY_EVERY == 0:
            self.sample_memory(pids)
        self._display.show(row, worker_seconds, self._memory, last=last)

    def sample_memory(self, pids: list[int]) -> None:
        """Measure the memory of all processes. pids: process ids of the workers."""
        self._memory = machine.proportional_memory([os.getpid(), *pids])
        self.peak_memory = max(self.peak_memory, self._memory)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write summary.json, and call `finish` of the loggers.

        Args:
            summary: the content of summary.json.

        Raises:
            SaveError: if a file cannot be written.
        """
        self.write_summary(summary)
        self._loggers.finish(summary)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json. Raises SaveError if that is not possible."""
        with saving(self._run_dir):
            write_json(self._run_dir / SUMMARY, summary)

    def close(self) -> None:
        """Close the files, and restore the terminal."""
        self._open.close()
