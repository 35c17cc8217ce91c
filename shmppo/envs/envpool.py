"""EnvPool: create a pool of environments, or use a pool with one environment as a `gymnasium.Env`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.checks import nearest
from shmppo.config.train_config import TrainConfig
from shmppo.envs.single_vector_env import rows_of
from shmppo.errors import ConfigError


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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered")  # of the bounds of its spaces
        pool = envpool.make(
            config.env_id, env_type="gymnasium", num_envs=len(seeds), num_threads=1, seed=seeds,
            **config.env_arguments(),
        )  # fmt: skip
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
        return rows_of(observation, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, infos = self._pool.step(np.asarray(action)[None])
        return rows_of(observation, 0), float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos

    def close(self) -> None:
        self._pool.close()
