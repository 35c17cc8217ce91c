"""What a teacher means for the reproducibility of a run."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.teaching.options import TeachingOptions
from shmppo.lockstep.feature import Feature
from shmppo.models.actor_critic import ActorCritic


class TaughtRun(Feature):
    """A run with --teacher."""

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return TeachingOptions.of(config).teacher is not None

    def networks(self) -> list[tuple[TrainConfig, ActorCritic]]:
        teacher = self.task.added["teacher"]
        return [(teacher.config, teacher.model(self.task.distribution))]


FEATURE = TaughtRun
