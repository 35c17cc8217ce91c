"""What an optional feature does in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import SharedBuffers


class Feature:
    """The base of FEATURE in the module `feature` of an extension, which overrides what it needs.

    The learner's process has one object of each class that the run uses.

    Attributes:
        inexact_reason: why runs with the feature are not reproducible. None: they are.
        watches_steps: whether `after_optimizer_step` reads the weights in this update.
    """

    inexact_reason: str | None = None
    watches_steps = False

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        """Whether a run has the feature."""
        raise NotImplementedError

    def __init__(
        self, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, group: ProcessGroup, run_dir: Path
    ) -> None:
        """Prepare the feature. It is called before the processes of the run are started."""
        self.config, self.task, self.buffers, self.group, self.run_dir = config, task, buffers, group, run_dir

    @staticmethod
    def check(config: TrainConfig) -> None:
        """Raise ConfigError if a run cannot begin. It is called before anything is written or started."""

    def networks(self) -> list[tuple[TrainConfig, ActorCritic]]:
        """Return further networks that act in the run, each with the configuration with which it was trained."""
        return []

    def start(self, model: ActorCritic) -> None:
        """Begin, when the network that learns exists."""

    def around_rollout(self, iteration: int) -> AbstractContextManager[None]:
        """Return a context that is open while a rollout is collected."""
        return nullcontext()

    def begin_update(self, iteration: int) -> None:
        """Called before the first optimizer step of an update. The minibatches are in the shared buffers."""

    def after_optimizer_step(self, steps: int) -> None:
        """Called after each optimizer step. steps: of this update, so far."""

    def end_update(self, iteration: int, steps: int) -> None:
        """Called after the last optimizer step of an update. steps: of this update."""

    def end_episodes(self, columns: Sequence[int], info: np.ndarray) -> None:
        """Called with the episodes that ended in a rollout, in their order.

        Args:
            columns: the first column of the environment of each episode, among all ranks.
            info: float64 [episodes, I], the numbers of `TrainConfig.reported_info`.
        """

    def metrics(self, steps: int) -> dict[str, float]:
        """Return further metrics of an iteration. steps: at which a column has acted, of all ranks, in it."""
        return {}

    def summary(self) -> dict[str, Any]:
        """Return further entries of summary.json."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return further entries of a checkpoint."""
        return {}

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore what a checkpoint contains."""


def used_features(config: TrainConfig) -> list[type[Feature]]:
    """Return the classes of the features that a run has."""
    return [module.FEATURE for module in added("feature") if module.FEATURE.is_used(config)]
