"""What teachers and demonstrations add to a rollout."""

from __future__ import annotations

from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.teaching.demonstrations import PlaybackVectorEnv
from shmppo.extensions.teaching.options import TeachingOptions
from shmppo.extensions.teaching.teacher import Teacher
from shmppo.parallel.shared_buffers import Rollout
from shmppo.sampling.actor import Actor
from shmppo.sampling.extension import SamplingExtension


class TaughtSampling(SamplingExtension):
    """Adds the recorded actions, or the policy parameters of the teacher.

    No environment gets the teacher's actions, so it acts after a rollout, on the stored observations.
    """

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        options = TeachingOptions.of(config)
        return options.teacher is not None or options.demonstrations is not None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._teacher: Teacher | None = self.task.added.get("teacher")
        if self._teacher is None:
            return
        config, distribution = self._teacher.config, self.task.distribution
        leaves, model = self._teacher.observation.leaves, self._teacher.model(distribution)
        self._obs = [np.zeros((len(self.columns), *leaf.shape), leaf.dtype) for leaf in leaves]
        self._actor = Actor(config, model, distribution, self._obs, low=self.columns.start)
        self._actor.load(*self._teacher.statistics)

    def end_rollout(self, rollout: Rollout, iteration: int, valid_steps: int) -> None:
        if isinstance(self.envs, PlaybackVectorEnv):
            rollout.actions[:valid_steps] = self.envs.take_actions()
        if self._teacher is None:
            return
        own, states = slice(self.columns.start, self.columns.stop), self._actor.states
        before, after = (self.buffers.carries[i % 2].added["teacher_state"][own] for i in (iteration, iteration + 1))
        states[:] = before
        for t in range(valid_steps):
            states[rollout.first[t]] = 0.0
            for leaf, source in self._teacher.sources.items():
                self._obs[leaf][:] = rollout.obs[source][t]
            self._obs[0][:, list(self._teacher.config.hidden_indices)] = 0
            self._actor.advance()
            rollout.added["teacher_params"][t] = self._actor.params
            self.progress += 1
        after[:] = states


SAMPLING = TaughtSampling
