"""Who watches a run beside its own files: a callback, the user's loggers, TensorBoard, Weights & Biases."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError

log = logging.getLogger(__name__)

Row = dict[str, float]
"""Values by the names of metrics.csv, or of eval.csv after an evaluation; both have iteration and env_steps."""

Callback = Callable[[Row], "bool | None"]
"""Sees the row of each iteration. True ends the run after it, with checkpoint and summary, as the first Ctrl-C does.
What it raises ends the run at once, and reaches the caller of `train`."""


class Logger(Protocol):
    """What `train(config, loggers=[…])` takes. A logger that raises is warned of in run.log and not called again."""

    def start(self, run_dir: Path, config: Mapping[str, Any], iteration: int) -> None:
        """Before the first iteration: the run's directory, every field of the configuration, iterations done before."""

    def log(self, row: Row) -> None:
        """After each iteration, and after each evaluation."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """At the end: what summary.json holds, or None if the run failed."""


class LoggerList:
    """The callback and the loggers of one run."""

    def __init__(self, callback: Callback | None = None, loggers: Sequence[Logger] = ()) -> None:
        self._callback = callback
        self._loggers = list(loggers)
        self._finished = False

    def start(self, run_dir: Path, config: TrainConfig, iteration: int) -> None:
        self._each(lambda logger: logger.start(run_dir, config.to_json(), iteration))

    def log(self, row: Row) -> None:
        """Give a row to the loggers."""
        self._each(lambda logger: logger.log(dict(row)))

    def asks_to_stop(self, row: Row) -> bool:
        """What the callback answers to an iteration's row."""
        return self._callback is not None and bool(self._callback(dict(row)))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Tell the loggers that the run has ended; told once."""
        if not self._finished:
            self._finished = True
            self._each(lambda logger: logger.finish(summary))

    def close(self) -> None:
        """The run's end if there was no other: it failed."""
        self.finish(None)

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:  # whatever a tracker raises must not end a run
                self._loggers.remove(logger)
                log.warning("%s failed and gets no more rows: %r", type(logger).__name__, error)


class TensorBoard:
    """Scalars by the names of the CSV files over env_steps, and the configuration as hyper-parameters."""

    def start(self, run_dir: Path, config: Mapping[str, Any], iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        # What a run wrote after the checkpoint that this one goes on from is dropped by TensorBoard itself.
        steps = iteration * config["ranks"] * config["num_envs"] * config["rollout_steps"]
        self._writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=steps + 1 if iteration else None)
        plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in config.items()}
        file = self._writer._get_file_writer()
        for summary in hparams(plain, {"return_mean_100": math.nan}):
            file.add_summary(summary)

    def log(self, row: Row) -> None:
        for name, value in row.items():
            if name not in ("iteration", "env_steps") and not math.isnan(value):
                self._writer.add_scalar(name, value, int(row["env_steps"]))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of the project "shmppo". WANDB_MODE=offline needs no network: `wandb sync` sends it later."""

    def start(self, run_dir: Path, config: Mapping[str, Any], iteration: int) -> None:
        import wandb

        # The same directory is the same run, so that a resumed one is appended to.
        identity = hashlib.sha256(str(run_dir).encode()).hexdigest()[:16]
        self._run = wandb.init(
            project="shmppo",
            name=run_dir.name,
            id=identity,
            resume="allow",
            dir=str(run_dir),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, row: Row) -> None:
        self._run.log(dict(row))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._run.finish(exit_code=0 if summary else 1)


_TRACKERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def make_trackers(config: TrainConfig) -> list[Logger]:
    """The trackers of --track. Raises ConfigError for one whose library is not installed."""
    for name in config.track:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"--track {name} needs the library {name}; pip install 'shmppo[{name}]'")
    return [_TRACKERS[name]() for name in config.track]
