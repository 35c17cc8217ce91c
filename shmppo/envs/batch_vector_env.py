"""Base class of the vector environments whose library steps all environments of the range in one call."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmppo.envs.vector_env import MAX_REWARD, EpisodeEnd, VectorEnv
from shmppo.errors import EnvError
from shmppo.models.observations import ObservationError
from shmppo.utils.user_code import describe_error, user_traceback


class BatchVectorEnv(VectorEnv):
    """A vector environment whose observations, rewards, and flags come as arrays with one row per environment."""

    def _store(self, observation: Any, indices: Sequence[int]) -> None:
        """Store a batch of observations, one row per environment in `indices`.

        Raises:
            EnvError: if a part of the observation is missing or does not fit its space.
        """
        for leaf, obs in zip(self.observation.leaves, self.obs, strict=True):
            try:
                obs[indices] = leaf.to_storage(leaf.extract(observation), (len(indices),))
            except ObservationError as error:
                raise self._error(indices[0], f"a call returned a batch of observations {error.clause}") from error
        for i in self._hidden:
            self.obs[0][indices, i] = 0.0

    def _hash(self, observation: Any, rewards: np.ndarray | None, indices: Sequence[int]) -> None:
        """Continue the hash of each episode in `indices` with its row of the whole batch. Without rewards, start it."""
        values = [np.ascontiguousarray(leaf.extract(observation)) for leaf in self.observation.leaves]
        if rewards is not None:
            values.insert(0, np.ascontiguousarray(rewards))
        for i in indices:
            hashed = 0 if rewards is None else self.hashes[i]
            for array in values:
                hashed = zlib.crc32(array[i : i + 1].data, hashed)
            self.hashes[i] = hashed

    def _count_step(self, rewards: np.ndarray, indices: Sequence[int]) -> None:
        """Add one step to the episodes in `indices`.

        Raises:
            EnvError: if a reward or an observation is not finite. It names the environment.
        """
        for i in indices:
            reward = float(rewards[i])
            if not -MAX_REWARD <= reward <= MAX_REWARD:
                raise self._reward_error(i, reward)
            self.returns[i] += reward
            self.lengths[i] += 1
        for _, nonfinite in self._find_nonfinite():
            raise nonfinite

    def _ends(self, terminated: np.ndarray, truncated: np.ndarray) -> list[EpisodeEnd]:
        """Describe the episodes that ended with this step. `obs` must contain their last observations."""
        return [self._episode_end(i, terminated[i]) for i in np.flatnonzero(terminated | truncated).tolist()]

    def _begin(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        """Count a new episode in each of the given environments."""
        for i, episode in zip(indices, episodes, strict=True):
            self.handles[i].episode = episode
            self.returns[i], self.lengths[i] = 0.0, 0

    def _raised(self, call: str, error: BaseException) -> EnvError:
        """Create an error for an exception of the library. Any environment of the range may have caused it."""
        first, last = self.handles[0].index, self.handles[-1].index
        message = f"{call} of the environments {first} … {last} raised {describe_error(error)}"
        return self._error(0, message, user_traceback(error))
