"""Environments: how one is made, and the slot that keeps it known by its global index.

An episode is (seed, actions): every reset is seeded by a hash of (run seed, environment index, episode
number), so any episode can be produced again by any process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from shmppo.config import ConfigError, TrainConfig
from shmppo.distributions import Distribution, distribution_for
from shmppo.streams import episode_seed

log = logging.getLogger("shmppo.envs")


class EnvironmentFault(RuntimeError):
    """An environment raised or broke the Gymnasium contract; carries its global index."""

    def __init__(self, env_index: int, message: str) -> None:
        super().__init__(env_index, message)
        self.env_index = env_index
        self.message = message

    def __str__(self) -> str:
        return f"environment {self.env_index}: {self.message}"


@dataclass(frozen=True)
class Task:
    """What the trainer needs to know of an environment's spaces."""

    observation_size: int  # D
    distribution: Distribution


def make_environment(config: TrainConfig) -> gymnasium.Env:
    """One plain environment; its time limit truncates, nothing resets it automatically."""
    # MuJoCo prints its warnings and drops MUJOCO_LOG.TXT in the working directory unless it is given a handler.
    mujoco.set_mju_user_warning(log.warning)
    return gymnasium.make(config.env_id, disable_env_checker=True)


def inspect_task(config: TrainConfig) -> Task:
    """Make one environment, look at its spaces, close it.

    Raises:
        ConfigError: if it cannot be made, a space is not supported, or an index to hide does not exist.
    """
    try:
        env = make_environment(config)
    except gymnasium.error.Error as error:
        raise ConfigError(f"--env {config.env_id}: {str(error).splitlines()[0]}") from error
    except (ImportError, TypeError, ValueError) as error:
        raise ConfigError(f"--env {config.env_id} could not be made: {error}") from error
    where = f"--env {config.env_id}"
    try:
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ConfigError(
                f"{where} has the observation space {space}; supported is a Box of one dimension: "
                "wrap it with gymnasium.wrappers.FlattenObservation"
            )
        size = int(space.shape[0])
        beyond = [i for i in config.hidden_indices if not 0 <= i < size]
        if beyond:
            raise ConfigError(
                f"--hide-obs names {beyond} but {config.env_id} observes {size} numbers; use indices 0 … {size - 1}"
            )
        return Task(size, distribution_for(env.action_space, where))
    finally:
        env.close()


class EnvironmentSlot:
    """Environment n of the run, for ever: its episodes, their seeds, and what the policy may see of it."""

    def __init__(self, config: TrainConfig, index: int) -> None:
        self.index = index
        self.episode = 0
        self._run_seed = config.seed
        self._hidden = list(config.hidden_indices)
        try:
            self._env = make_environment(config)
        except Exception as error:
            raise EnvironmentFault(index, f"could not be made: {error}") from error
        self._size = int(np.prod(self._env.observation_space.shape or ()))

    def begin(self, episode: int) -> np.ndarray:
        """Reset to the start of an episode; returns its first observation, float32 [D]."""
        self.episode = episode
        seed = episode_seed(self._run_seed, self.index, episode)
        try:
            observation, _ = self._env.reset(seed=seed)
        except Exception as error:
            raise EnvironmentFault(self.index, f"reset(seed={seed}) raised {error!r}") from error
        return self._seen(observation)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """One step; returns (observation float32 [D], reward, terminated, truncated).

        The observation is a copy: environments that reuse their buffer cannot change it later.
        """
        try:
            observation, reward, terminated, truncated, _ = self._env.step(action)
            return self._seen(observation), float(reward), bool(terminated), bool(truncated)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(self.index, f"step raised {error!r} in episode {self.episode}") from error

    def _seen(self, observation: Any) -> np.ndarray:
        seen = np.array(observation, dtype=np.float32)
        if seen.shape != (self._size,):
            raise EnvironmentFault(self.index, f"observation of shape {seen.shape}, but its space says ({self._size},)")
        for i in self._hidden:
            seen[i] = 0.0
        return seen

    def close(self) -> None:
        self._env.close()
