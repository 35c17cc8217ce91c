"""Receivers of metrics: the user's callback, the user's loggers, TensorBoard, and Weights & Biases."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from shmppo.config.checks import require
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.loggers.metrics import tracker_name
from shmppo.utils.files import complete_rows, open_file, read_file
from shmppo.utils.user_code import accepts, parameters_of

log = logging.getLogger(__name__)

Row = dict[str, float]
"""Metrics by name: a row of metrics.csv, with those of the evaluation after this iteration. An evaluation at the end
of a run is a row of its own, with iteration and env_steps."""

Callback = Callable[[Row], "bool | None"] | Callable[[Row, Any], "bool | None"]
"""Called with the metrics of each iteration. It also gets a `shmppo.runs.handle.RunHandle` if it has a parameter named
run, or if its second parameter has no default.

If it returns True, the run ends after this iteration, with a checkpoint and a summary. The first Ctrl-C does the same.
If it raises, the run ends at once, and the caller of `train` gets the exception."""


class Logger(Protocol):
    """Interface of the loggers in `train(config, loggers=[…])`.

    If a logger raises, a warning is written to run.log, and the logger is not called again.
    """

    def start(self, run_dir: Path, config: Mapping[str, Any], iteration: int) -> None:
        """Called once before the first iteration.

        Args:
            run_dir: directory of the run.
            config: all fields of the configuration.
            iteration: number of finished iterations; above 0 in a resumed run.
        """

    def log(self, row: Row) -> None:
        """Called after each iteration, with the results of its evaluation if there was one.

        If the run is evaluated at its end, a last row has only these results.
        """

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Called once at the end, with the content of summary.json, or with None if the run failed."""


def _with_run(callback: Any) -> Callable[[Row, Any], bool | None]:
    """Return a callback as a function of (row, run). Raises ConfigError if it cannot be called so."""
    if callback is None:
        return lambda row, run: None
    if "run" in parameters_of(callback) and accepts(functools.partial(callback, run=None), {}):
        return lambda row, run: callback(row, run=run)
    second = list(parameters_of(callback).values())[1:2]
    if accepts(callback, {}, None) and all(one.default is one.empty for one in second):
        return cast("Callable[[Row, Any], bool | None]", callback)
    require(
        callable(callback) and accepts(callback, {}),
        "`callback` must be a function of (row) or (row, run); to use several, call them in one function",
    )
    return lambda row, run: callback(row)


class LoggerList:
    """The callback and the loggers of one run."""

    def __init__(self, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> None:
        """Check the callback. Raises ConfigError if it cannot be called with (row) or (row, run)."""
        self._callback = _with_run(callback)
        self._loggers = list(loggers)
        self._running = False

    def start(self, run_dir: Path, config: TrainConfig, iteration: int) -> None:
        """Call `start` of all loggers."""
        self._running = True
        self._each(lambda logger: logger.start(run_dir, config.to_json(), iteration))

    def log(self, row: Row) -> None:
        """Call `log` of all loggers."""
        self._each(lambda logger: logger.log(dict(row)))

    def asks_to_stop(self, row: Row, run: object) -> bool:
        """Call the callback with the metrics of an iteration; returns whether it asks to end the run."""
        return bool(self._callback(dict(row), run))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Call `finish` of all loggers, if they have started and not finished. summary: None if the run has failed."""
        if self._running:
            self._running = False
            self._each(lambda logger: logger.finish(summary))

    def _each(self, call: Callable[[Logger], None]) -> None:
        """Call all loggers. Remove those that raise, with a warning."""
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:  # a failing logger must not end the run
                self._loggers.remove(logger)
                log.warning("%s failed and gets no more rows: %r", type(logger).__name__, error)


class TensorBoard:
    """Logger for TensorBoard: metrics over env_steps, and the configuration as hyperparameters and as text.

    A curve begins with the first value that is not 0, except those of returns and `info`.
    """

    def start(self, run_dir: Path, config: Mapping[str, Any], iteration: int) -> None:
        tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
        # TensorBoard drops the points after the checkpoint from which this run resumes.
        rows = complete_rows(run_dir / "metrics.csv") if iteration else []
        purge_step = int(float(rows[-1]["env_steps"])) + 1 if rows else None
        self._writer = tensorboard.SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge_step)
        plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in config.items()}
        for summary in tensorboard.summary.hparams(plain, {tracker_name("return_mean_100"): math.nan}):
            self._writer.file_writer.add_summary(summary)
        self._writer.add_text("configuration", "\n".join(f"    {name}: {value}" for name, value in config.items()))
        self._begun: set[str] = set()

    def log(self, row: Row) -> None:
        self._begun |= {name for name in row if row[name] or name.startswith(("return", "info/", "eval/"))}
        for name, value in row.items():
            if name in self._begun - {"iteration", "env_steps"} and not math.isnan(value):
                self._writer.add_scalar(tracker_name(name), value, int(row["env_steps"]))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Logger for Weights & Biases, which reads WANDB_PROJECT, WANDB_RUN_GROUP, WANDB_NAME, and WANDB_TAGS.

    Without a network, set WANDB_MODE=offline and upload the run later with `wandb sync`.
    """

    def start(self, run_dir: Path, config: Mapping[str, Any], iteration: int) -> None:
        import wandb

        # The run directory keeps the id: a resumed run continues its tracked run, and a new run there begins another.
        identity = run_dir / "wandb" / "id"
        if not identity.exists():
            identity.parent.mkdir(parents=True, exist_ok=True)
            with open_file(identity, "x") as file:
                file.write(secrets.token_hex(8))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "shmppo"),
            name=os.environ.get("WANDB_NAME", run_dir.name),
            id=read_file(identity).decode(),
            resume="allow",
            dir=str(run_dir),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, row: Row) -> None:
        self._run.log({tracker_name(name): value for name, value in row.items()})

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._run.finish(exit_code=0 if summary else 1)


_TRACKERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def make_trackers(config: TrainConfig) -> list[Logger]:
    """Make the loggers that --track names. Raises ConfigError if the library of one is not installed."""
    for name in config.track:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a directory of this name has no origin
            raise ConfigError(f"--track {name} needs the library {name}; pip install 'shmppo[{name}]'")
    return [_TRACKERS[name]() for name in config.track]
