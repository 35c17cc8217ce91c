"""What teachers and demonstrations add to a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.teaching.demonstrations import PlaybackVectorEnv
from shmppo.extensions.teaching.options import TeachingOptions
from shmppo.models.actor_critic import ActorCritic, trained_model
from shmppo.parallel.shared_buffers import Rollout
from shmppo.sampling.actor import Actor
from shmppo.sampling.extension import SamplingExtension
from shmppo.spaces.distributions import Distribution
from shmppo.spaces.observations import ObservationSpec


@dataclass(frozen=True)
class Teacher:
    """The frozen policy that a run imitates. It contains no torch tensors, so it can be pickled as a value."""

    config: TrainConfig
    """Configuration of the teacher's training, with what computes it as --kernel: "native" or "torch"."""
    observation: ObservationSpec
    """What the teacher observes."""
    sources: dict[int, int]
    """Index of each leaf that the teacher needs -> index of the run's leaf with the same content."""
    weights: dict[str, np.ndarray]
    """Parameters by name."""
    statistics: tuple[np.ndarray, np.ndarray]
    """Statistics that normalize its observations: mean and 1 / standard deviation, each [D]."""
    state_size: int
    """Size of its recurrent state."""

    def model(self, distribution: Distribution) -> ActorCritic:
        """Make its network. distribution: of the actions."""
        weights = {name: torch.from_numpy(array) for name, array in self.weights.items()}
        return trained_model(self.config, self.observation, distribution, weights)


class TaughtSampling(SamplingExtension):
    """Adds the recorded actions, or the policy parameters of the teacher.

    No environment gets the teacher's actions, so it acts after a rollout, on the stored observations.
    """

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return TeachingOptions.of(config).teacher is not None or config.recording() is not None

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
