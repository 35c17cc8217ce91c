"""The base class of vector environments: a contiguous range of environments that one process steps.

All of them share the bookkeeping of episodes. See `VectorEnv.step`. A handle belongs to one environment of the run.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from shmppo.config.info_keys import PREFIX, InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import name_values
from shmppo.envs.episode_info import EpisodeInfo
from shmppo.envs.schedule import Options
from shmppo.envs.spec import EnvSpec
from shmppo.errors import ConfigError, EnvError
from shmppo.spaces.observations import Leaf, ObservationError, hashable
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

FIRST_INDEX = 2**40
"""Index of the environment of an evaluation's episode 0. Training uses smaller indices, and so other random streams."""
MAX_REWARD = float(np.finfo(np.float32).max)
"""Advantages and value targets are float32; those of larger rewards would be infinite."""


class Progress:
    """Counts the environments that this process has made or reset, so that a slow one does not count as stalled.

    Attributes:
        counter: int64 [1], which the process may replace by an array that others see.
        interrupted: whether a call that gave no result in time was interrupted, which depends on the clock.
    """

    counter = np.zeros(1, np.int64)
    interrupted = False


def name_of(env_index: int) -> str:
    """Return the name of an environment, or of an episode of an evaluation, for log messages."""
    return f"environment {env_index}" if env_index < FIRST_INDEX else f"evaluation episode {env_index - FIRST_INDEX}"


@contextmanager
def as_env_error(env_index: int, what: str = "could not be made:") -> Iterator[None]:
    """Raise EnvError, with this index, for what the code of an environment raises, for example "reset() raised …"."""
    try:
        yield
    except ConfigError:
        raise
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise EnvError(env_index, f"{what} {describe_error(error)}", details=user_traceback(error)) from error


class EnvHandle:
    """One environment of the run, identified by its index.

    Attributes:
        episode: number of its current episode.
        seed: with which that episode was reset. None: without a seed.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.episode = 0
        self.seed: int | None = None

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        """Write a snapshot of the environment, uint8 [bytes]. Does nothing if it has no snapshots."""


class RenderedHandle(EnvHandle):
    """A handle of an environment that can be rendered.

    Attributes:
        env: the environment with its wrappers.
    """

    env: gymnasium.Env

    @property
    def frames_per_second(self) -> float:
        """Frame rate at which a video with one frame per step shows the environment at its normal speed."""
        return float(self.env.metadata.get("render_fps") or 30)


class EpisodeEnd(NamedTuple):
    """An episode that ended at a step."""

    i: int
    """Position of its environment within the range."""
    final: tuple[np.ndarray, ...]
    """Last observation, one array per leaf as stored, hidden indices 0. Empty if the episode failed."""
    terminated: bool
    """True if the episode terminated. False if it was truncated, so that its value bootstraps the return."""
    failed: bool
    """True if the environment failed and the episode is skipped.

    The step that failed has no outcome, and the episode is not part of any statistic.
    """
    episode_return: float
    """Sum of the rewards, not discounted."""
    length: int
    """Number of steps."""
    info: Mapping[str, float] = MappingProxyType({})
    """The numbers of `info` that the episode has, by the name of the metric. Empty if it failed."""
    number: int = 0
    """Number of the episode in this environment."""
    crc: int = 0
    """Its value of `VectorEnv.hashes`."""


class EpisodeToRestore(NamedTuple):
    """An episode in progress, and what a lost environment needs to continue it."""

    number: int
    """Number of the episode in this environment."""
    actions: list[Any] | None
    """Its actions so far, in the environment's own format. None: it cannot be replayed."""
    expected_hash: int
    """The value of `VectorEnv.hashes` after these actions."""
    snapshot: np.ndarray | None
    """The environment's snapshot after these actions, uint8 [bytes]. None: the environment has no snapshots."""
    options: Options | None = None
    """The options of its reset (--env-schedule). None: no options."""


class VectorEnv(ABC):
    """A contiguous range of n environments. When an episode ends, the next one starts within the same step.

    This class counts steps and rewards, checks that numbers are finite, hides indices of the observation, and ends
    episodes. A subclass steps, resets, and restores its environments.

    Attributes:
        handles: one handle per environment.
        observation: the leaves of the observation.
        obs: [n, …] per leaf: the current observations, hidden indices 0. Each step copies into this memory, so an
            environment may reuse its own arrays.
        returns: float64 [n], return so far of each current episode.
        lengths: int64 [n], length so far of each current episode.
        info: the numbers of `info` of each current episode.
        failed_starts: int64 [n], number of episodes whose reset has failed, which the caller sets to 0.
        unrepeated: bool [n], whether an episode was skipped because of a failure that did not happen again.
        hashes: CRC-32 of each current episode: its raw observations, before indices are hidden, and its rewards.
        options: the options that the resets of the next episodes get (--env-schedule). None: no options.
        active: bool [n], which columns act in the next step, if they may be idle. None: all.
    """

    active: np.ndarray | None = None

    def __init__(self, config: TrainConfig, task: EnvSpec, handles: Sequence[EnvHandle]) -> None:
        self.handles = handles
        self.observation = observation = task.observation
        self.obs = tuple(np.zeros((len(handles), *leaf.shape), leaf.dtype) for leaf in observation.leaves)
        self.returns = np.zeros(len(handles))
        self.lengths = np.zeros(len(handles), np.int64)
        self.info = EpisodeInfo(config.reported_info, len(handles))
        self.hashes = [0] * len(handles)
        self.failed_starts = np.zeros(len(handles), np.int64)
        self.unrepeated = np.zeros(len(handles), bool)
        self.options: Options | None = None
        self._env_obs = list(zip(*self.obs, strict=True))  # per environment: a view into each array of `obs`
        self._float_leaves = [(k, leaf) for k, leaf in enumerate(observation.leaves) if leaf.dtype == "float32"]
        self._hidden = list(config.hidden_indices)
        self._env_id = config.env_id
        self._stepped = np.ones(len(handles), np.int64)  # 1 for each environment that the current step counts for

    def reset_all(self, episode: int) -> None:
        """Start the episode with this number in every environment."""
        for i in range(len(self.handles)):
            self.reset_env(i, episode)

    @abstractmethod
    def reset_env(self, i: int, episode: int) -> None:
        """Start the episode with this number in environment i."""

    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        """Step every environment and write its observation to `obs`.

        Where an episode ends, the next one begins at once: `obs` then has its first observation, and `EpisodeEnd.final`
        the last one of the old episode. `SyncVectorEnv` calls the environments' `step` one after the other.

        Args:
            actions: one action per environment. An environment with None is not stepped.
            rewards: float64 [n], written. 0 if the step failed.
            terminated: bool [n], written.
            truncated: bool [n], written. True if the step failed.

        Returns:
            The episodes that ended at this step.

        Raises:
            EnvError: if an environment raises or breaks Gymnasium's API, and failed episodes are not skipped. It names
                the environment.
        """
        failures = self._step_environments(actions, rewards, terminated, truncated)
        self._hide()
        self._find_invalid(rewards, failures)
        for i in failures:
            rewards[i], terminated[i], truncated[i] = 0.0, False, True
        self.returns += rewards
        self.lengths += self._stepped
        self.info.add(self._numbers)
        ended = (terminated | truncated).nonzero()[0].tolist()
        return self._end_episodes(ended, failures, terminated) if ended else []

    def reported(self, ended: list[EpisodeEnd]) -> list[EpisodeEnd]:
        """Return the episodes that count for the statistics, given those that the last step has ended."""
        return ended

    def total(self, i: int) -> float:
        """Return the return so far of the environment that begins at column i, summed over those of the policy."""
        return float(self.returns[i])

    @abstractmethod
    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        """Restore every environment to a step of its episode, from a snapshot or by repeating its actions.

        An environment that cannot be restored begins its next episode. The caller restores `obs`, `returns`, `lengths`,
        and `hashes` of the others.

        Args:
            episodes: one per environment.
            progress: [1], increased by 1 for each environment and step, so that the learner can detect a worker that
                hangs.

        Returns:
            Whether each environment was restored.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every environment."""

    @abstractmethod
    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        """Step every environment. Write its observation, as it is, to `obs`, and continue its hash.

        An environment that the step does not count for has the reward 0, no flag, and 0 in `_stepped`.

        Args:
            actions, rewards, terminated, truncated: see `step`.

        Returns:
            The errors of the environments that failed, by position. Their results are not used.

        Raises:
            EnvError: if all environments failed together.
        """

    @abstractmethod
    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        """Return the numbers of a key in `info` at the current step of the environments `indices`, NaN where missing.

        Raises:
            TypeError: if a value is not a number.
        """

    def _begin_next(self, indices: Sequence[int]) -> None:
        """Start the next episodes of environments whose episode has ended."""
        for i in indices:
            self.reset_env(i, self.handles[i].episode + 1)

    def _skip_episode(self, i: int, error: EnvError) -> None:
        """Skip the current episode of environment i and start a later one.

        Args:
            i: position of the environment within the range.
            error: the failure of the current episode.

        Raises:
            EnvError: `error` itself if failed episodes are not skipped.
        """
        raise error

    def _begin_episode(self, i: int, episode: int) -> None:
        """Count from 0 again for the episode with this number in environment i."""
        Progress.counter += 1
        self.handles[i].episode = episode
        self.returns[i], self.lengths[i], self.hashes[i] = 0.0, 0, 0
        self.info.begin(i)

    def _end_episodes(
        self, indices: Sequence[int], failures: dict[int, EnvError], terminated: np.ndarray
    ) -> list[EpisodeEnd]:
        """Describe the episodes that ended or failed in the environments `indices`, and start the next ones."""
        ends = []
        for i, info in zip(indices, self.episode_info(indices), strict=True):  # before the next episodes begin
            if i in failures:
                self._skip_episode(i, failures[i])
                ends.append(EpisodeEnd(i, (), False, True, 0.0, 0))
            else:
                final, flag = self._final_observation(i), bool(terminated[i])
                numbers = float(self.returns[i]), int(self.lengths[i]), info, self.handles[i].episode, self.hashes[i]
                ends.append(EpisodeEnd(i, final, flag, False, *numbers))
        if completed := [end.i for end in ends if not end.failed]:
            self._begin_next(completed)
        return ends

    def info_of(self, e: int) -> dict[str, float]:
        """Return the numbers of the current episode of environment e so far, by metric."""
        return self.episode_info([e])[0]

    def episode_info(self, indices: Sequence[int]) -> list[dict[str, float]]:
        """Return the numbers of `info` of the current episodes so far, see `EpisodeInfo.ended`."""
        return self.info.ended(indices, self._numbers)

    def _numbers(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        """Call `_read_info`, and raise an EnvError that names the key for a TypeError.

        If all environments share one `info`, the error names the first environment, whichever has the wrong value.
        """
        try:
            return self._read_info(key, indices)
        except TypeError as error:
            if len(indices) > 1:  # find the environment
                return np.concatenate([self._numbers(key, [i]) for i in indices])
            name = key.metric.removeprefix(PREFIX)
            message = f"--info-keys {name}: in the info of {self._env_id}, {error}; name a key of numbers"
            raise self._error(indices[0], message) from error

    def _final_observation(self, i: int) -> tuple[np.ndarray, ...]:
        """Copy the last observation of the episode of environment i that has just ended, one array per leaf."""
        return tuple(obs.copy() for obs in self._env_obs[i])

    def _hide(self) -> None:
        """Set the hidden indices of all current observations to 0."""
        if self._hidden:
            self.obs[0][:, self._hidden] = 0.0

    def _find_invalid(self, rewards: np.ndarray, failures: dict[int, EnvError]) -> None:
        """Add an error to `failures` for each environment whose reward or current observation is not finite."""
        valid = np.abs(rewards) <= MAX_REWARD
        if np.count_nonzero(valid) < valid.size:  # faster than all()
            for i in np.flatnonzero(~valid).tolist():
                message = f"step returned the reward {rewards[i]}, which is not finite in float32"
                failures.setdefault(i, self._error(i, message))
        for k, leaf in self._float_leaves:
            finite = np.isfinite(self.obs[k])
            if np.count_nonzero(finite) < finite.size:
                for i in np.flatnonzero(~finite.all(axis=1)).tolist():
                    failures.setdefault(i, self._nonfinite_error(i, "step", leaf, self.obs[k][i]))

    def _check_finite(self, i: int, call: str, observation: Sequence[np.ndarray]) -> None:
        """Raise EnvError if an observation of environment i, one array per leaf, is not finite."""
        for k, leaf in self._float_leaves:
            if not np.isfinite(observation[k]).all():
                raise self._nonfinite_error(i, call, leaf, observation[k])

    def _store_leaves(self, i: int, call: str, observation: Any, hashed: int) -> None:
        """Store an observation that `call` has returned leaf by leaf, and continue the hash `hashed` with all of them.

        Raises:
            EnvError: if it does not belong to its space.
        """
        try:
            for leaf, obs in zip(self.observation.leaves, self._env_obs[i], strict=True):
                value = leaf.extract(observation)
                obs[...] = leaf.to_storage(value)
                hashed = zlib.crc32(hashable(value).data, hashed)
        except ObservationError as error:
            raise self._error(i, f"{call} returned an invalid observation: {error}") from error
        self.hashes[i] = hashed

    def _error(self, i: int, message: str, details: str = "") -> EnvError:
        """Create an error that names environment i, its episode, and its complete steps."""
        handle = self.handles[i]
        steps = self.lengths[i]
        seed = "" if handle.seed is None else f" with seed {handle.seed}"
        return EnvError(
            handle.index, f"{message} (episode {handle.episode}{seed}, after {steps} steps)", details=details
        )

    def _raised(self, i: int, call: str, error: BaseException) -> EnvError:
        """Create an error for what a method of environment i has raised. Raise it again if Ctrl-C caused it."""
        reraise_ctrl_c(error)
        return self._error(i, f"{call} raised {describe_error(error)}", user_traceback(error))

    def _nonfinite_error(self, i: int, call: str, leaf: Leaf, stored: np.ndarray) -> EnvError:
        """Create an error that names the values of a stored leaf that are not finite."""
        values = stored.reshape(leaf.env_shape)
        named = name_values(values, ~np.isfinite(values))
        return self._error(i, f"{call} returned an invalid observation: {leaf.title} is not finite: {named}")
