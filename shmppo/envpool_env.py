"""EnvPool's environments, stepped in C++: a pool of them, and one alone as a Gymnasium environment."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from shmppo.config import ConfigError, TrainConfig
from shmppo.options import nearest

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


class OneOfPool(gymnasium.Env):
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
