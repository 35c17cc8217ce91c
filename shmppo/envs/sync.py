"""Vector environments that step Gymnasium environments one after the other.

An episode is determined by its seed and its actions. Each reset is seeded by a hash of (run seed, environment index,
episode number), so any process can repeat any episode.
"""

from __future__ import annotations

import logging
import math
import struct
import time
import zlib
from typing import Any

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import close_environment, make_environment
from shmppo.envs.snapshots import restore_snapshot, take_snapshot
from shmppo.envs.spec import Task
from shmppo.envs.vector_env import EnvHandle, EpisodeEnd, VectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.utils.rng import episode_seed

log = logging.getLogger(__name__)

START_ATTEMPTS = 20  # consecutive episodes that may fail to start before the run ends with an error
_NOT_STEPPED = (0.0, False, False)  # reward, terminated, truncated
_DOUBLE = struct.Struct("d")


class GymnasiumHandle(EnvHandle):
    """A handle with a Gymnasium environment of its own. It seeds each episode.

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
        try:
            self._env = make_environment(self._config, self._render_mode)
        except ConfigError:
            raise
        except Exception as error:
            raise EnvError(self.index, f"could not be made: {error}") from error
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
            observation, _ = self._env.reset() if seed is None else self._env.reset(seed=seed)
        except Exception as error:
            rule = "reset must return (observation, info)"
            raise EnvError(self.index, f"reset(seed={seed}) raised {error!r}; {rule}") from error
        return observation

    def render(self) -> Any:
        """Return the environment's rendering of its current state."""
        return self._env.render()

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


class SyncVectorEnv(VectorEnv):
    """A vector environment that steps its environments one after the other.

    With `skip_bad_episodes`, an environment that fails is created again and continues with its next episode.
    """

    handles: list[GymnasiumHandle]

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, render_mode: str | None = None) -> None:
        super().__init__(config, task, [GymnasiumHandle(config, task, n, render_mode) for n in range(low, high)])
        self._skip_failed = config.skip_bad_episodes
        self._store = self._store_vector if self.observation.is_single_vector else self._store_leaves
        self._step_functions = [handle.step for handle in self.handles]

    def reset_all(self, episode: int) -> None:
        for i in range(len(self.handles)):
            self._reset_or_skip(i, episode)

    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        ended: list[EpisodeEnd] = []
        new_rewards, new_terminated, new_truncated = [], [], []
        for i, action in enumerate(actions):
            try:
                reward, terminates, truncates = _NOT_STEPPED if action is None else self._advance(i, action)
                if terminates or truncates:
                    ended.append(self._episode_end(i, terminates))
            except EnvError as error:
                reward, terminates, truncates = 0.0, False, True
                ended.append(self._skip_episode(i, error))
            else:
                if terminates or truncates:
                    self._reset_next(i)
            new_rewards.append(reward)
            new_terminated.append(terminates)
            new_truncated.append(truncates)
        for i, nonfinite in self._find_nonfinite():
            new_rewards[i], new_terminated[i], new_truncated[i] = 0.0, False, True
            ended.append(self._skip_episode(i, nonfinite))
        if self._hidden:
            self.obs[0][:, self._hidden] = 0.0
        rewards[:] = new_rewards
        terminated[:] = new_terminated
        truncated[:] = new_truncated
        return ended

    def replay(self, i: int, episode: int, actions: list[Any], expected_hash: int, progress: np.ndarray) -> bool:
        self.reset_env(i, episode)
        try:
            for action in actions:
                progress += 1
                _, terminated, truncated = self._advance(i, action)
                if terminated or truncated:  # the original episode has not ended yet
                    self.reset_env(i, episode + 1)
                    return False
        except EnvError as error:
            self._skip_episode(i, error)
            return False
        self.obs[0][i, self._hidden] = 0.0
        if self.hashes[i] == expected_hash:
            return True
        self.reset_env(i, episode + 1)
        return False

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """Step environment i. Returns (reward, terminated, truncated)."""
        try:
            observation, reward, terminated, truncated, _ = self._step_functions[i](action)
            number = float(reward)
            self._store(i, observation, zlib.crc32(_DOUBLE.pack(number), self.hashes[i]))
        except Exception as error:
            rule = "step must return (observation, reward, terminated, truncated, info)"
            raise self._error(i, f"step raised {error!r}; {rule}") from error
        if not math.isfinite(number):
            raise self._error(i, f"step returned the reward {number}, which is not finite")
        self.returns[i] += number
        self.lengths[i] += 1
        return number, terminated, truncated

    def _store_vector(self, i: int, observation: Any, hashed: int) -> None:
        """Store an observation that is one vector, and continue the hash `hashed` with it."""
        (obs,) = self._env_obs[i]
        if getattr(observation, "shape", None) != obs.shape:  # the assignment below would broadcast a single number
            shape = np.shape(observation)
            if shape != obs.shape:
                raise ValueError(f"the observation has shape {shape}, but its space has shape {obs.shape}")
        obs[:] = observation
        self.hashes[i] = zlib.crc32(np.ascontiguousarray(observation).data, hashed)

    def _store_leaves(self, i: int, observation: Any, hashed: int) -> None:
        """Store an observation leaf by leaf, and continue the hash `hashed` with all of them."""
        for leaf, obs in zip(self.observation.leaves, self._env_obs[i], strict=True):
            value = leaf.extract(observation)
            obs[...] = leaf.to_storage(value)
            hashed = zlib.crc32(np.ascontiguousarray(value).data, hashed)
        self.hashes[i] = hashed

    def reset_env(self, i: int, episode: int) -> None:
        self._store(i, self.handles[i].reset(episode), 0)
        self.obs[0][i, self._hidden] = 0.0
        self.returns[i] = 0.0
        self.lengths[i] = 0
        for obs in self._env_obs[i]:
            if obs.dtype == np.float32 and not np.isfinite(obs).all():
                raise self._error(i, f"reset returned the observation {obs.tolist()}, which is not finite")

    def _reset_next(self, i: int) -> None:
        """Start the next episode of environment i."""
        self._reset_or_skip(i, self.handles[i].episode + 1)

    def _reset_or_skip(self, i: int, episode: int) -> None:
        """Start an episode. If its reset fails and failed episodes are skipped, start a later one."""
        try:
            self.reset_env(i, episode)
        except EnvError as error:
            self._skip_episode(i, error)

    def _skip_episode(self, i: int, error: EnvError) -> EpisodeEnd:
        """Skip the current episode: create the environment again and start its next episode.

        Args:
            i: position of the environment within the range.
            error: the failure of the current episode.

        Raises:
            EnvError: `error` itself if the configuration does not skip failed episodes, or the last error if none of
                the next START_ATTEMPTS episodes can start.
        """
        if not self._skip_failed:
            raise error
        log.warning("%s; skipping this episode", error)
        handle = self.handles[i]
        handle.close()
        handle.make()
        self._step_functions[i] = handle.step
        for attempts_left in reversed(range(START_ATTEMPTS)):
            try:
                self.reset_env(i, handle.episode + 1)
                break
            except EnvError as reset_error:
                if not attempts_left:
                    raise
                log.warning("%s; skipping this episode", reset_error)
        return EpisodeEnd(i, (), False, True, 0.0, 0)

    def close(self) -> None:
        for handle in self.handles:
            handle.close()


class TimedSyncVectorEnv(SyncVectorEnv):
    """A `SyncVectorEnv` that measures the time of each step of each environment, including resets."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, step_seconds: np.ndarray) -> None:
        """Create the environments low … high − 1.

        Args:
            config: the configuration of the run.
            task: the description of the environment.
            low: index of the first environment.
            high: index after the last environment.
            step_seconds: [T, high − low], written. Each step writes one row; after the last row, the first one follows.
        """
        super().__init__(config, task, low, high)
        self._step_seconds = step_seconds
        self._t = 0

    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        ended = super().step(actions, rewards, terminated, truncated)
        self._t = (self._t + 1) % len(self._step_seconds)
        return ended

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        start = time.monotonic()
        result = super()._advance(i, action)
        self._step_seconds[self._t, i] = time.monotonic() - start
        return result

    def _reset_next(self, i: int) -> None:
        start = time.monotonic()
        super()._reset_next(i)
        self._step_seconds[self._t, i] += time.monotonic() - start
