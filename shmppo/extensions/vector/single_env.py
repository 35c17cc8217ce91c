"""Creation of a vector environment of the user, and its use as a `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.creation_errors import imported_factory
from shmppo.envs.wrappers import batch_actions
from shmppo.errors import ConfigError


def open_vector_env(config: TrainConfig, count: int, render_mode: str | None = None) -> Any:
    """Create the user's vector environment with `count` environments.

    Raises:
        ConfigError: if `--env` does not name a vector environment.
        BaseException: whatever its own code raises.
    """
    arguments = config.env_arguments(render_mode)
    factory = imported_factory(config.env_id, gymnasium.vector.VectorEnv)
    if factory is not None:
        envs = factory(num_envs=count, **arguments)
    else:
        envs = gymnasium.make_vec(config.env_id, count, vectorization_mode="vector_entry_point", **arguments)
    if not isinstance(envs, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"--env {config.env_id} returned {type(envs).__name__}, but --env-backend vector needs a "
            "gymnasium.vector.VectorEnv; name a factory that returns one"
        )
    if envs.num_envs != count:
        raise ConfigError(
            f"--env {config.env_id} returned {envs.num_envs} environments instead of {count}; use the argument num_envs"
        )
    return envs


def autoreset_mode(envs: Any) -> str:
    """Return when a vector environment resets an environment whose episode has ended.

    Returns:
        "SAME_STEP" or "NEXT_STEP": it does so itself, in the same or the next step. "DISABLED": it does not.
    """
    mode = envs.metadata.get("autoreset_mode", "NEXT_STEP")
    return str(getattr(mode, "name", mode)).upper().replace("-", "_")


class SingleVectorEnv(gymnasium.Env):
    """The user's vector environment with one environment, used as a `gymnasium.Env`."""

    def __init__(self, config: TrainConfig, render_mode: str | None = None) -> None:
        self._envs = open_vector_env(config, 1, render_mode)
        self._same_step = autoreset_mode(self._envs) == "SAME_STEP"
        self.metadata = self._envs.metadata
        self.render_mode = render_mode
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; see `gymnasium.Env.reset`."""
        observation, _ = self._envs.reset(seed=None if seed is None else [seed], options=options)
        return rows_of(observation, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, infos = self._envs.step(batch_actions(self.action_space, [action]))
        ended = bool(terminated[0] or truncated[0])
        last = rows_of(observation, 0)
        if ended and self._same_step:
            last, infos = infos["final_obs"][0], infos.get("final_info", infos)
        return last, float(reward[0]), bool(terminated[0]), bool(truncated[0]), _present(infos)

    def render(self) -> Any:
        """Return the rendering of the environment."""
        return self._envs.render()[0]

    def close(self) -> None:
        self._envs.close()


def _present(infos: Any) -> Any:
    """Return what the `info` of a vector environment contains of its only environment, see `numbers_of`."""
    if not isinstance(infos, dict):
        return infos
    return {key: _present(value) for key, value in infos.items() if np.all(infos.get(f"_{key}", True))}


def rows_of(batch: Any, rows: int | Sequence[int]) -> Any:
    """Return the parts of a batch of observations that belong to the given environments."""
    if isinstance(batch, dict):
        return {key: rows_of(part, rows) for key, part in batch.items()}
    return tuple(rows_of(part, rows) for part in batch) if isinstance(batch, tuple) else np.asarray(batch)[rows]
