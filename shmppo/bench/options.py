"""The options of the benchmarks.

The module does not import torch, so that the help texts are fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shmppo.config.option import AT_LEAST_1, option
from shmppo.config.options import NetworkOptions, ObjectiveOptions, OptimizerOptions, TaskOptions, UpdateOptions
from shmppo.config.train_config import TrainConfig, field_types

Learning = Literal["central", "sharded"]
Mode = Literal["strong", "weak", "envs"]


@dataclass(frozen=True)
class Throughput:
    """Measure steps per second, phases, and the share of the roofline."""

    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The configuration to measure."""
    iterations: int = 23
    """Iterations to train. The first 3 are not counted."""
    roofline: bool = True
    """Also measure the limit of this machine: bare simulator steps and matrix products, on all cores."""
    json: bool = False
    """Print one JSON object instead of text."""


@dataclass(frozen=True)
class Scaling(OptimizerOptions, ObjectiveOptions, UpdateOptions, NetworkOptions, TaskOptions):
    """Measure speed-up and efficiency over numbers of workers."""

    workers: tuple[int, ...] = (1, 2, 4)
    """Numbers of workers to measure. The speed-up is relative to the first."""
    learning: tuple[Learning, ...] = ("central", "sharded")
    """Values of --learning to measure."""
    modes: tuple[Mode, ...] = ("strong", "weak", "envs")
    """strong: --num-envs in total. weak: --envs-per-worker for each worker. envs: one worker with 1, 2, 4 …
    environments."""
    envs_per_worker: int | None = option(None, AT_LEAST_1)
    """Environments of each worker in mode weak. None: --num-envs divided by the largest number of workers."""
    iterations: int = 13
    """Iterations of each run. The first 3 are not counted."""
    repetitions: int = option(1, AT_LEAST_1)
    """Repetitions of all runs, interleaved. The table shows medians."""
    out: Path = Path("scaling.csv")
    """CSV file to write, with more columns than the printed table."""

    def config(self, **changes: Any) -> TrainConfig:
        """Return the configuration with some fields changed. Raises ConfigError if it cannot run."""
        names = vars(self).keys() & field_types()
        return TrainConfig(**{name: getattr(self, name) for name in names} | changes)

    def with_envs(self, num_envs: int, **changes: Any) -> TrainConfig:
        """Return `config` with another number of environments.

        The number of minibatches changes too, so that the steps per minibatch stay as close as possible.
        """
        minibatches = max(1, round(self.minibatches * num_envs / self.num_envs))
        return self.config(num_envs=num_envs, minibatches=minibatches, **changes)
