"""Gymnasium environments, stepped one after the other."""

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

START_ATTEMPTS = 20  # episodes that may fail to begin, one after the other, before an environment is given up
_LEFT_ALONE = (0.0, False, False)
_DOUBLE = struct.Struct("d")


class GymnasiumHandle(EnvHandle):
    """A slot with a Gymnasium environment of its own; it knows the seeds of its episodes."""

    def __init__(self, config: TrainConfig, task: Task, index: int, render_mode: str | None = None) -> None:
        super().__init__(index)
        self._config = config
        self._task = task
        self._render_mode = render_mode
        self.make()

    def make(self) -> None:
        """Make the environment, in place of the one before if there was one. Raises ConfigError or EnvError."""
        try:
            self._env = make_environment(self._config, self._render_mode)
        except ConfigError:
            raise
        except Exception as error:
            raise EnvError(self.index, f"could not be made: {error}") from error
        self.step = self._env.step
        self._seeded = self._task.seeding != "never"  # whether the next reset is

    def begin(self, episode: int) -> Any:
        """Reset to the start of an episode; returns its first observation."""
        self.episode = episode
        stream = self._config.first_env + self.index  # global: no two ranks share one
        seed = episode_seed(self._config.seed, stream, episode) if self._seeded else None
        self._seeded = self._task.seeding == "episode"
        try:
            observation, _ = self._env.reset() if seed is None else self._env.reset(seed=seed)
        except Exception as error:
            rule = "reset must return (observation, info)"
            raise EnvError(self.index, f"reset(seed={seed}) raised {error!r}; {rule}") from error
        return observation

    def render(self) -> Any:
        """What the environment draws of its present state."""
        return self._env.render()

    @property
    def frames_per_second(self) -> float:
        """Frames per second of a film that shows every step at the environment's own pace."""
        return float(self._env.metadata.get("render_fps") or 30)

    def keep(self, snapshot: np.ndarray) -> None:
        if self._task.snapshot is not None:
            take_snapshot(self._env, self._task.snapshot, snapshot)

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        assert self._task.snapshot is not None
        restore_snapshot(self._env, self._task.snapshot, snapshot)

    def close(self) -> None:
        close_environment(self._env, f"environment {self.index}")


class SyncVectorEnv(VectorEnv):
    """Environments stepped one after the other."""

    handles: list[GymnasiumHandle]

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, render_mode: str | None = None) -> None:
        super().__init__(config, task, [GymnasiumHandle(config, task, n, render_mode) for n in range(low, high)])
        self._skip_bad = config.skip_bad_episodes
        self._see = self._see_vector if self.observation.plain else self._see_leaves
        self._steps = [slot.step for slot in self.handles]

    def begin(self, episode: int) -> None:
        for i in range(len(self.handles)):
            self._begin(i, episode)

    def step(
        self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        ended: list[EpisodeEnd] = []
        row_rewards, row_terminated, row_truncated = [], [], []
        for i, action in enumerate(actions):
            try:
                reward, terminates, truncates = _LEFT_ALONE if action is None else self._advance(i, action)
                if terminates or truncates:
                    ended.append(self._ended(i, terminates))
            except EnvError as fault:
                reward, terminates, truncates = 0.0, False, True
                ended.append(self._give_up(i, fault))
            else:
                if terminates or truncates:
                    self._begin_next(i)
            row_rewards.append(reward)
            row_terminated.append(terminates)
            row_truncated.append(truncates)
        for i, broken in self._not_finite():
            row_rewards[i], row_terminated[i], row_truncated[i] = 0.0, False, True
            ended.append(self._give_up(i, broken))
        if self._hidden:
            self.obs[0][:, self._hidden] = 0.0
        rewards[:] = row_rewards
        terminated[:] = row_terminated
        truncated[:] = row_truncated
        return ended

    def replay(self, i: int, number: int, actions: list, expected_hash: int, progress: np.ndarray) -> bool:
        self.begin_one(i, number)
        try:
            for action in actions:
                progress += 1
                _, terminated, truncated = self._advance(i, action)
                if terminated or truncated:  # an episode in progress has not ended
                    self.begin_one(i, number + 1)
                    return False
        except EnvError as fault:
            self._give_up(i, fault)
            return False
        self.obs[0][i, self._hidden] = 0.0
        if self.hashes[i] == expected_hash:
            return True
        self.begin_one(i, number + 1)
        return False

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """One step of one environment; returns (reward, terminated, truncated)."""
        try:
            observation, reward, terminated, truncated, _ = self._steps[i](action)
            number = float(reward)
            self._see(i, observation, zlib.crc32(_DOUBLE.pack(number), self.hashes[i]))
        except Exception as error:
            rule = "step must return (observation, reward, terminated, truncated, info)"
            raise self._fault(i, f"step raised {error!r}; {rule}") from error
        if not math.isfinite(number):
            raise self._fault(i, f"rewarded {number}: not finite")
        self.returns[i] += number
        self.lengths[i] += 1
        return number, terminated, truncated

    def _see_vector(self, i: int, observation: Any, hashed: int) -> None:
        """Take over an observation that is one vector, and its hash."""
        (row,) = self._rows[i]
        if getattr(observation, "shape", None) != row.shape:  # assignment alone would broadcast a single number
            shape = np.shape(observation)
            if shape != row.shape:
                raise ValueError(f"observation of shape {shape}, but its space says {row.shape}")
        row[:] = observation
        self.hashes[i] = zlib.crc32(np.ascontiguousarray(observation).data, hashed)

    def _see_leaves(self, i: int, observation: Any, hashed: int) -> None:
        """Take over an observation leaf by leaf, and the hash of all of them."""
        for leaf, row in zip(self.observation.leaves, self._rows[i], strict=True):
            value = leaf.of(observation)
            row[...] = leaf.stored(value)
            hashed = zlib.crc32(np.ascontiguousarray(value).data, hashed)
        self.hashes[i] = hashed

    def begin_one(self, i: int, episode: int) -> None:
        self._see(i, self.handles[i].begin(episode), 0)
        self.obs[0][i, self._hidden] = 0.0
        self.returns[i] = 0.0
        self.lengths[i] = 0
        for part in self._rows[i]:
            if part.dtype == np.float32 and not np.isfinite(part).all():
                raise self._fault(i, f"began with the observation {part.tolist()}: not finite")

    def _begin_next(self, i: int) -> None:
        self._begin(i, self.handles[i].episode + 1)

    def _begin(self, i: int, episode: int) -> None:
        """Begin an episode, or the one after it where bad ones are skipped and this cannot begin."""
        try:
            self.begin_one(i, episode)
        except EnvError as fault:
            self._give_up(i, fault)

    def _give_up(self, i: int, fault: EnvError) -> EpisodeEnd:
        """Go on after a step that failed, with the next episode of an environment made anew.

        Raises:
            EnvError: `fault`, unless the configuration says to skip bad episodes; and where none of the next
                START_ATTEMPTS episodes can begin.
        """
        if not self._skip_bad:
            raise fault
        log.warning("%s; skipped", fault)
        slot = self.handles[i]
        slot.close()
        slot.make()
        self._steps[i] = slot.step
        for attempts_left in reversed(range(START_ATTEMPTS)):
            try:
                self.begin_one(i, slot.episode + 1)
                break
            except EnvError as again:
                if not attempts_left:
                    raise
                log.warning("%s; skipped", again)
        return EpisodeEnd(i, (), False, True, 0.0, 0)

    def close(self) -> None:
        for slot in self.handles:
            slot.close()


class TimedSyncVectorEnv(SyncVectorEnv):
    """An `SyncVectorEnv` that writes how long each environment took at each step, its reset included."""

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, step_seconds: np.ndarray) -> None:
        """step_seconds: [T, high − low], written one row a step, from the first again after the last."""
        super().__init__(config, task, low, high)
        self._step_seconds = step_seconds
        self._t = 0

    def step(
        self, actions: list, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        ended = super().step(actions, rewards, terminated, truncated)
        self._t = (self._t + 1) % len(self._step_seconds)
        return ended

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        began = time.monotonic()
        result = super()._advance(i, action)
        self._step_seconds[self._t, i] = time.monotonic() - began
        return result

    def _begin_next(self, i: int) -> None:
        began = time.monotonic()
        super()._begin_next(i)
        self._step_seconds[self._t, i] += time.monotonic() - began
