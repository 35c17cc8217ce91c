"""Vector environments of EnvPool, which steps a whole range of environments in C++.

EnvPool seeds an environment only when it creates it, so it cannot repeat a lost episode. A run with EnvPool is thus not
reproducible after a crash or a resume. Its results do not depend on the number of workers: each environment has a seed
of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.options import nearest
from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.envs.vector_env import EnvHandle, EpisodeEnd, VectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.utils.rng import episode_seed

SEEDS = 2**31  # number of different seeds that EnvPool accepts


def open_pool(config: TrainConfig, seeds: Sequence[int]) -> Any:
    """Create a pool with one environment per seed. One thread steps all of them.

    Raises:
        ConfigError: if EnvPool is not installed, or if it does not have the environment.
    """
    try:
        import envpool
    except ImportError as error:
        raise ConfigError(f"--env-backend envpool: {error}; pip install 'shmppo[envpool]'") from error
    known = envpool.list_all_envs()
    if config.env_id not in known:
        raise ConfigError(
            f"--env-backend envpool has no {config.env_id}{nearest(config.env_id, known)}; use --env-backend gymnasium"
        )
    seeds = [seed % SEEDS for seed in seeds]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered")  # of the bounds of its spaces
        pool = envpool.make(
            config.env_id, env_type="gymnasium", num_envs=len(seeds), num_threads=1, seed=seeds, **config.env_kwargs
        )
        assert pool.observation_space is not None  # the pool creates its spaces, and warns, on the first access
    return pool


class SingleEnvPoolEnv(gymnasium.Env):
    """A pool with one environment, used as a `gymnasium.Env`.

    A seeded reset creates the pool again, because EnvPool seeds an environment only when it creates it.
    """

    def __init__(self, config: TrainConfig, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise ConfigError(f"--env-backend envpool cannot render {config.env_id}; remove --video")
        self._config = config
        self._pool = open_pool(config, [0])
        self.observation_space = self._pool.observation_space
        self.action_space = self._pool.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; see `gymnasium.Env.reset`."""
        if seed is not None:
            self._pool.close()
            self._pool = open_pool(self._config, [seed])
        observation, _ = self._pool.reset()
        return _first(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, _ = self._pool.step(np.asarray(action)[None])
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        self._pool.close()


def _first(observation: Any) -> Any:
    """Return the first environment's part of a pool's observation."""
    if isinstance(observation, dict):
        return {key: _first(part) for key, part in observation.items()}
    return observation[0]


class EnvPoolVectorEnv(VectorEnv):
    """A vector environment whose environments form one EnvPool pool."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, episodes: Sequence[int]) -> None:
        """Create the environments low … high − 1.

        Args:
            config: the configuration of the run.
            task: the description of the environment.
            low: index of the first environment.
            high: index after the last environment.
            episodes: [high − low], the episodes that each environment has started so far. The number is part of the
                seed, so that a new pool does not repeat old episodes.

        Raises:
            EnvError: if the pool cannot be created.
        """
        super().__init__(config, task, [EnvHandle(n) for n in range(low, high)])
        streams = range(config.first_env + low, config.first_env + high)
        seeds = [episode_seed(config.seed, n, episode) for n, episode in zip(streams, episodes, strict=True)]
        try:
            self._pool = open_pool(config, seeds)
        except Exception as error:
            raise EnvError(low, f"could not be made: {error}") from error

    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        try:
            observation, rewards[:], terminated[:], truncated[:], _ = self._pool.step(np.asarray(actions))
        except Exception as error:
            raise self._error(0, f"step of this environment's pool raised {error!r}") from error
        self._store(observation, range(len(self.handles)))
        for i in np.flatnonzero(~np.isfinite(rewards)).tolist():
            raise self._error(i, f"step returned the reward {rewards[i]}, which is not finite")
        for _, nonfinite in self._find_nonfinite():
            raise nonfinite
        self.returns = [total + reward for total, reward in zip(self.returns, rewards.tolist(), strict=True)]
        self.lengths = [length + 1 for length in self.lengths]
        indices = np.flatnonzero(terminated | truncated).tolist()
        ended = [self._episode_end(i, terminated[i]) for i in indices]
        if indices:
            self._reset(indices, [self.handles[i].episode + 1 for i in indices])
        return ended

    def reset_all(self, episode: int) -> None:
        self._reset(range(len(self.handles)), [episode] * len(self.handles))

    def reset_env(self, i: int, episode: int) -> None:
        self._reset([i], [episode])

    def replay(self, i: int, episode: int, actions: list[Any], expected_hash: int, progress: np.ndarray) -> bool:
        """Start the next episode instead: EnvPool cannot repeat an episode."""
        self.reset_env(i, episode + 1)
        return False

    def close(self) -> None:
        self._pool.close()

    def _reset(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        """Start one episode in each of the given environments."""
        observation, _ = self._pool.reset(np.array(indices, np.int32))
        self._store(observation, indices)
        for i, episode in zip(indices, episodes, strict=True):
            self.handles[i].episode = episode
            self.returns[i], self.lengths[i] = 0.0, 0

    def _store(self, observation: Any, indices: Sequence[int]) -> None:
        """Store the observations of the given environments."""
        for leaf, obs in zip(self.observation.leaves, self.obs, strict=True):
            values = leaf.extract(observation)
            if leaf.kind == "codes":
                values = np.stack([leaf.to_storage(value) for value in values])
            obs[indices] = values.reshape(len(indices), *leaf.shape)
        for i in self._hidden:
            self.obs[0][indices, i] = 0.0
