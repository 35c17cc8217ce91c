"""Base class of the vector environments whose library steps all environments of the range in one call."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmppo.config.info_keys import InfoKey
from shmppo.envs.episode_info import numbers_of
from shmppo.envs.vector_env import EpisodeToRestore, VectorEnv
from shmppo.errors import EnvError
from shmppo.spaces.observations import ObservationError


class BatchVectorEnv(VectorEnv):
    """A vector environment whose observations, rewards, and flags come as arrays with one row per environment."""

    _infos: Any = {}  # noqa: RUF012 (of the current step; never changed in place)

    def _store(self, observation: Any, indices: Sequence[int]) -> None:
        """Store a batch of observations, one row per environment in `indices`.

        Raises:
            EnvError: see `_to_storage`.
        """
        for obs, values in zip(self.obs, self._to_storage(observation, indices[0], (len(indices),)), strict=True):
            obs[indices] = values

    def _to_storage(self, observation: Any, i: int, batch: tuple[int, ...] = ()) -> list[np.ndarray]:
        """Convert an observation to one array per leaf.

        Args:
            observation: of one environment, or a batch with one row per environment.
            i: the environment that an error names.
            batch: shape of the batch.

        Raises:
            EnvError: if a part of the observation is missing or does not fit its space.
        """
        try:
            return [leaf.to_storage(leaf.extract(observation), batch) for leaf in self.observation.leaves]
        except ObservationError as error:
            raise self._error(i, f"a call returned invalid observations: {error}") from error

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        return numbers_of(self._infos, key, len(self.handles))[indices]

    def _hash(self, observation: Any, rewards: np.ndarray | None, indices: Sequence[int]) -> None:
        """Continue the hash of each episode in `indices` with its row of the whole batch."""
        values = [np.ascontiguousarray(leaf.extract(observation)) for leaf in self.observation.leaves]
        if rewards is not None:
            values.insert(0, np.ascontiguousarray(rewards))
        for i in indices:
            for array in values:
                self.hashes[i] = zlib.crc32(array[i : i + 1].data, self.hashes[i])

    def reset_all(self, episode: int) -> None:
        self._reset(range(len(self.handles)), [episode] * len(self.handles))

    def reset_env(self, i: int, episode: int) -> None:
        self._reset([i], [episode])

    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        """Begin the next episodes instead. A subclass that can repeat episodes overrides this."""
        self._reset(range(len(self.handles)), [episode.number + 1 for episode in episodes])
        return [False] * len(episodes)

    @abstractmethod
    def _reset(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        """Start one episode in each of the given environments."""

    def _begin(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin an episode in each of the environments `indices`. `obs` must contain its first observation.

        Raises:
            EnvError: if the observation is not finite.
        """
        self._hide()
        for i, episode in zip(indices, episodes, strict=True):
            self._begin_episode(i, episode)
            self._check_finite(i, "reset", self._env_obs[i])

    def _raised(self, i: int, call: str, error: BaseException) -> EnvError:
        """Create an error for an exception of the library. Any environment of the range may have caused it."""
        first, last = self.handles[0].index, self.handles[-1].index
        return super()._raised(i, f"{call} of the environments {first} … {last}", error)
