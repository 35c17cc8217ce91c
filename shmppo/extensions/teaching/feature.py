"""What a teacher means for the reproducibility of a run."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.teaching.options import TeachingOptions
from shmppo.extensions.teaching.teacher import Teacher
from shmppo.lockstep.feature import Feature
from shmppo.sampling.row_independence import reason_of_dependence


class TaughtRun(Feature):
    """A run with --teacher."""

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return TeachingOptions.of(config).teacher is not None

    @property
    def _teacher(self) -> Teacher:
        teacher: Teacher = self.task.added["teacher"]
        return teacher

    @property
    def uses_torch(self) -> bool:
        return self._teacher.config.kernel == "torch"

    @property
    def inexact_reason(self) -> str | None:
        return reason_of_dependence(self._teacher.config, self._teacher.model(self.task.distribution))


FEATURE = TaughtRun
