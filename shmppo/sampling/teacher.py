"""The teacher's policy parameters (--teacher). No environment gets its actions, so it acts after a rollout, on the
stored observations."""

from __future__ import annotations

import numpy as np

from shmppo.models.teacher import Teacher
from shmppo.parallel.shared_buffers import Rollout
from shmppo.sampling.actor import Actor
from shmppo.spaces.distributions import Distribution


class TeacherActor:
    """Computes the policy parameters of the teacher for a range of environments."""

    def __init__(self, teacher: Teacher, distribution: Distribution, count: int, low: int) -> None:
        """Make its network.

        Args:
            count: number of environments in the range.
            low: index of the first one.
        """
        self._sources, self._hidden = teacher.sources, list(teacher.config.hidden_indices)
        self._obs = [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in teacher.observation.leaves]
        self._actor = Actor(teacher.config, teacher.model(distribution), distribution, self._obs, low=low)
        self._actor.load(*teacher.statistics)

    def act(self, rollout: Rollout, steps: int, state: np.ndarray, progress: np.ndarray) -> np.ndarray:
        """Write the policy parameters of the teacher at the valid steps of a rollout. Call it in inference mode.

        Args:
            rollout: the columns of the range.
            steps: number of valid steps.
            state: [own, state_size], its recurrent states before the rollout.
            progress: [1], increased by 1 for each step.

        Returns:
            Its recurrent states after the rollout [own, state_size], which the next call overwrites.
        """
        self._actor.states[:] = state
        for t in range(steps):
            self._actor.states[rollout.first[t]] = 0.0
            for own, source in self._sources.items():
                self._obs[own][:] = rollout.obs[source][t]
            self._obs[0][:, self._hidden] = 0
            self._actor.advance()
            rollout.teacher_params[t] = self._actor.params
            progress += 1
        return self._actor.states
