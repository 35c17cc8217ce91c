"""What an optional feature does in a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

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
    """

    inexact_reason: str | None = None

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        """Whether a run has the feature."""
        raise NotImplementedError

    def __init__(
        self, config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, group: ProcessGroup, run_dir: Path
    ) -> None:
        """Prepare the feature. It is called before the processes of the run are started."""
        self.config, self.task, self.buffers, self.group, self.run_dir = config, task, buffers, group, run_dir

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

    def metrics(self, env_steps: int) -> dict[str, float]:
        """Return further metrics of an iteration. env_steps: of all ranks, in this iteration."""
        return {}


def used_features(
    config: TrainConfig, task: EnvSpec, buffers: SharedBuffers, group: ProcessGroup, run_dir: Path
) -> list[Any]:
    """Make the features of a run."""
    kinds: list[type[Feature]] = [module.FEATURE for module in added("feature")]
    return [kind(config, task, buffers, group, run_dir) for kind in kinds if kind.is_used(config)]
