"""A range of environments in one of EnvPool's pools: stepped together, in C++.

Such a run is not exact: EnvPool seeds an environment only when it makes it, so an episode that was lost cannot be
played again. It does not depend on the number of workers: each environment has a seed of its own.
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

SEEDS = 2**31  # that EnvPool distinguishes


def open_pool(config: TrainConfig, seeds: Sequence[int]) -> Any:
    """A pool of one environment for each seed, stepped by one thread.

    Raises:
        ConfigError: if EnvPool is not installed, or has no environment of this name.
    """
    try:
        import envpool
    except ImportError as error:
        raise ConfigError(f"--env-backend envpool: {error}; pip install 'shmppo[envpool]'") from error
    known = envpool.list_all_envs()
    if config.env_id not in known:
        raise ConfigError(
            f"--env-backend envpool has no {config.env_id}{nearest(config.env_id, known)}; "
            "use --env-backend gymnasium for environments that it has not"
        )
    seeds = [seed % SEEDS for seed in seeds]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered")  # of its spaces' bounds, which it makes when asked
        pool = envpool.make(
            config.env_id, env_type="gymnasium", num_envs=len(seeds), num_threads=1, seed=seeds, **config.env_kwargs
        )
        assert pool.observation_space is not None
    return pool


class SingleEnvPoolEnv(gymnasium.Env):
    """A pool of one. Seeding a reset makes the pool anew: EnvPool seeds environments only when it makes them."""

    def __init__(self, config: TrainConfig, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise ConfigError(f"--env-backend envpool does not draw {config.env_id}; leave --video out")
        self._config = config
        self._pool = open_pool(config, [0])
        self.observation_space = self._pool.observation_space
        self.action_space = self._pool.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._pool.close()
            self._pool = open_pool(self._config, [seed])
        observation, _ = self._pool.reset()
        return _first(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self._pool.step(np.asarray(action)[None])
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        self._pool.close()


def _first(observation: Any) -> Any:
    """The first row of a pool's observation."""
    if isinstance(observation, dict):
        return {key: _first(part) for key, part in observation.items()}
    return observation[0]


class EnvPoolVectorEnv(VectorEnv):
    """Environments of one pool."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, begun: Sequence[int]) -> None:
        """begun: [high − low] episodes that each environment began before it is made anew here: part of its seed."""
        super().__init__(config, task, [EnvHandle(n) for n in range(low, high)])
        streams = range(config.first_env + low, config.first_env + high)
        seeds = [episode_seed(config.seed, n, episodes) for n, episodes in zip(streams, begun, strict=True)]
        try:
            self._pool = open_pool(config, seeds)
        except Exception as error:
            raise EnvError(low, f"could not be made: {error}") from error

    def step(
        self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        try:
            observation, rewards[:], terminated[:], truncated[:], _ = self._pool.step(np.asarray(actions))
        except Exception as error:
            raise self._fault(0, f"or one of its pool raised {error!r}") from error
        self._see(observation, range(len(self.handles)))
        for i in np.flatnonzero(~np.isfinite(rewards)).tolist():
            raise self._fault(i, f"rewarded {rewards[i]}: not finite")
        for _, broken in self._not_finite():
            raise broken
        self.returns = [total + reward for total, reward in zip(self.returns, rewards.tolist(), strict=True)]
        self.lengths = [length + 1 for length in self.lengths]
        rows = np.flatnonzero(terminated | truncated).tolist()
        ended = [self._ended(i, terminated[i]) for i in rows]
        if rows:
            self._begin(rows, [self.handles[i].episode + 1 for i in rows])
        return ended

    def begin(self, episode: int) -> None:
        self._begin(range(len(self.handles)), [episode] * len(self.handles))

    def begin_one(self, i: int, episode: int) -> None:
        self._begin([i], [episode])

    def replay(self, i: int, number: int, actions: list, expected_hash: int, progress: np.ndarray) -> bool:
        self.begin_one(i, number + 1)
        return False

    def close(self) -> None:
        self._pool.close()

    def _begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        observation, _ = self._pool.reset(np.array(rows, np.int32))
        self._see(observation, rows)
        for i, episode in zip(rows, episodes, strict=True):
            self.handles[i].episode = episode
            self.returns[i], self.lengths[i] = 0.0, 0

    def _see(self, observation: Any, rows: Sequence[int]) -> None:
        """Take over the observations of some rows."""
        for leaf, obs in zip(self.observation.leaves, self.obs, strict=True):
            values = leaf.of(observation)
            if leaf.kind == "codes":
                values = np.stack([leaf.stored(value) for value in values])
            obs[rows] = values.reshape(len(rows), *leaf.shape)
        for i in self._hidden:
            self.obs[0][rows, i] = 0.0
