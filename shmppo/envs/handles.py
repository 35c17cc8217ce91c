"""Handles: each belongs to one environment of the run and knows its index and the number of its current episode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import result_of
from shmppo.envs.factory import close_environment, make_environment
from shmppo.envs.snapshots import restore_snapshot, take_snapshot
from shmppo.envs.spec import Task
from shmppo.errors import ConfigError, EnvError
from shmppo.utils.rng import episode_seed
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback


@contextmanager
def creation_errors(env_index: int) -> Iterator[None]:
    """Raise EnvError, with this index, for what the code of an environment raises while it is created."""
    try:
        yield
    except ConfigError:
        raise
    except FAILURES as error:
        reraise_ctrl_c(error)
        details = user_traceback(error)
        raise EnvError(env_index, f"could not be made: {describe_error(error)}", details=details) from error


class EnvHandle:
    """One environment of the run, identified by its index, and the number of its current episode."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.episode = 0

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        """Write a snapshot of the environment, uint8 [bytes]. Does nothing if it has no snapshots."""

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        """Restore what `save_snapshot` wrote. The episode of the snapshot must have been started before."""


class GymnasiumHandle(EnvHandle):
    """A handle with its own Gymnasium environment. It seeds each episode.

    Attributes:
        step: the environment's `step` method.
    """

    def __init__(self, config: TrainConfig, task: Task, index: int, render_mode: str | None = None) -> None:
        super().__init__(index)
        self._config = config
        self._task = task
        self._render_mode = render_mode
        self.make()

    def make(self) -> None:
        """Create the environment, replacing an earlier one.

        Raises:
            ConfigError: if the configuration does not name an environment.
            EnvError: if the environment's own code raises.
        """
        with creation_errors(self.index):
            self._env = make_environment(self._config, self._render_mode)
        self.step = self._env.step
        self._seeded = self._task.seeding != "never"  # whether the next reset receives a seed

    def reset(self, episode: int) -> Any:
        """Start the episode with this number and return its first observation.

        Raises:
            EnvError: if the environment's `reset` raises or returns something other than a pair.
        """
        self.episode = episode
        stream = self._config.first_env + self.index  # unique over all ranks
        seed = episode_seed(self._config.seed, stream, episode) if self._seeded else None
        self._seeded = self._task.seeding == "episode"
        try:
            returned = self._env.reset() if seed is None else self._env.reset(seed=seed)
        except FAILURES as error:
            reraise_ctrl_c(error)
            raise EnvError(
                self.index,
                f"reset(seed={seed}) of episode {episode} raised {describe_error(error)}; correct reset",
                details=user_traceback(error),
            ) from error
        try:
            observation, _ = returned
        except (TypeError, ValueError) as error:
            raise EnvError(
                self.index,
                f"reset(seed={seed}) of episode {episode} returned {result_of(returned)}; it must return "
                "(observation, info)",
            ) from error
        return observation

    def render(self) -> Any:
        """Return the environment's rendering of its current state."""
        return self._env.render()

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of the environment."""
        return self._env.action_space

    @property
    def unwrapped(self) -> Any:
        """The environment without wrappers."""
        return self._env.unwrapped

    @property
    def frames_per_second(self) -> float:
        """Frame rate at which a video with one frame per step shows the environment at its normal speed."""
        return float(self._env.metadata.get("render_fps") or 30)

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        if self._task.snapshot is not None:
            take_snapshot(self._env, self._task.snapshot, snapshot)

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        assert self._task.snapshot is not None
        restore_snapshot(self._env, self._task.snapshot, snapshot)

    def close(self) -> None:
        close_environment(self._env, f"environment {self.index}")
