"""Vector environments: a contiguous range of environments that one process steps.

`VectorEnv` is the base class. `SyncVectorEnv` steps Gymnasium environments one after the other.
"""

from __future__ import annotations

import itertools
import logging
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import STEP_RULE, brief, name_values, result_of
from shmppo.envs.handles import EnvHandle, GymnasiumHandle
from shmppo.envs.spec import Task
from shmppo.errors import EnvError
from shmppo.models.observations import Leaf, ObservationError, relative_pronoun
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

log = logging.getLogger(__name__)

START_ATTEMPTS = 20  # consecutive episodes that may fail to start before the run ends with an error
_NOT_STEPPED = (0.0, False, False)  # reward, terminated, truncated
_DOUBLE = struct.Struct("d")
MAX_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored in float32. Larger ones would be infinite there."""


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


class VectorEnv(ABC):
    """A contiguous range of n environments. When an episode ends, the next one starts within the same step.

    Attributes:
        handles: one handle per environment.
        observation: the leaves of the observation.
        obs: [n, …] per leaf: the current observations, hidden indices 0. Each step copies into this memory, so an
            environment may reuse its own arrays.
        returns, lengths: return and length so far of each current episode.
        hashes: CRC-32 of each current episode: its raw observations, before indices are hidden, and its rewards.
    """

    def __init__(self, config: TrainConfig, task: Task, handles: Sequence[EnvHandle]) -> None:
        self.handles = handles
        self.observation = observation = task.observation
        self.obs = tuple(np.zeros((len(handles), *leaf.shape), leaf.dtype) for leaf in observation.leaves)
        self.returns = [0.0] * len(handles)
        self.lengths = [0] * len(handles)
        self.hashes = [0] * len(handles)
        self._env_obs = list(zip(*self.obs, strict=True))  # per environment: a view into each array of `obs`
        floats = [leaf.dtype == "float32" for leaf in observation.leaves]
        self._float_leaves = list(itertools.compress(zip(observation.leaves, self.obs, strict=True), floats))
        self._hidden = list(config.hidden_indices)

    @abstractmethod
    def reset_all(self, episode: int) -> None:
        """Start the episode with this number in every environment."""

    @abstractmethod
    def reset_env(self, i: int, episode: int) -> None:
        """Start the episode with this number in environment i."""

    @abstractmethod
    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        """Step every environment and write its observation to `obs`.

        Args:
            actions: one action per environment. `SyncVectorEnv` does not step an environment with None.
            rewards: [n], written.
            terminated: bool [n], written.
            truncated: bool [n], written.

        Returns:
            The episodes that ended at this step.

        Raises:
            EnvError: if an environment raises or breaks Gymnasium's API. It names the environment.
        """

    @abstractmethod
    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        """Restore every environment to a step of its episode, from a snapshot or by repeating its actions.

        An environment that cannot be restored begins its next episode.

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

    def _error(self, i: int, message: str, details: str = "") -> EnvError:
        """Create an error that names environment i, its episode, and its step."""
        handle = self.handles[i]
        steps = self.lengths[i]
        return EnvError(handle.index, f"{message} (episode {handle.episode}, after {steps} steps)", details=details)

    def _reward_error(self, i: int, reward: float) -> EnvError:
        """Create an error for a reward that cannot be stored."""
        return self._error(i, f"step returned the reward {reward}, which is not finite in float32")

    def _find_nonfinite(self) -> Iterator[tuple[int, EnvError]]:
        """Yield (i, error) for each environment whose current observation is not finite."""
        for leaf, obs in self._float_leaves:
            if not np.isfinite(obs).all():
                for i in np.flatnonzero(~np.isfinite(obs).all(axis=1)).tolist():
                    yield i, self._nonfinite_error(i, "step", leaf, obs[i])

    def _check_finite(self, i: int, call: str) -> None:
        """Raise EnvError if the current observation of environment i is not finite."""
        for leaf, obs in self._float_leaves:
            if not np.isfinite(obs[i]).all():
                raise self._nonfinite_error(i, call, leaf, obs[i])

    def _nonfinite_error(self, i: int, call: str, leaf: Leaf, stored: np.ndarray) -> EnvError:
        """Create an error that names the values of a stored leaf that are not finite."""
        values = stored.reshape(leaf.env_shape)
        named = name_values(values, ~np.isfinite(values))
        return self._error(i, f"{call} returned an observation {relative_pronoun(leaf.keys)} is not finite: {named}")

    def _episode_end(self, i: int, terminated: bool) -> EpisodeEnd:
        """Describe the episode of environment i that has just ended.

        Raises:
            EnvError: if its last observation is not finite.
        """
        self._env_obs[i][0][self._hidden] = 0.0
        self._check_finite(i, "step")
        final = tuple(obs.copy() for obs in self._env_obs[i])
        return EpisodeEnd(i, final, bool(terminated), False, self.returns[i], self.lengths[i])


class SyncVectorEnv(VectorEnv):
    """A vector environment that steps its environments one after the other.

    With `skip_bad_episodes`, an environment that fails is created again and continues with its next episode.
    """

    handles: list[GymnasiumHandle]
    handle_type = GymnasiumHandle

    def __init__(self, config: TrainConfig, task: Task, low: int, high: int, render_mode: str | None = None) -> None:
        super().__init__(config, task, [self.handle_type(config, task, n, render_mode) for n in range(low, high)])
        self._skip_failed = config.skip_bad_episodes
        self._store = self._store_vector if self.observation.is_single_vector else self._store_leaves
        self._step_functions = [handle.step for handle in self.handles]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one environment."""
        return self.handles[0].action_space

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

    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        return [self._restore_env(i, episode, progress) for i, episode in enumerate(episodes)]

    def _restore_env(self, i: int, episode: EpisodeToRestore, progress: np.ndarray) -> bool:
        """Restore environment i. Return whether that succeeded."""
        progress += 1
        if episode.snapshot is not None:
            self.reset_env(i, episode.number)
            self.handles[i].restore_snapshot(episode.snapshot)
            return True
        if episode.actions is None:
            self._reset_or_skip(i, episode.number + 1)
            return False
        return self.replay(i, episode.number, episode.actions, episode.expected_hash, progress)

    def replay(self, i: int, episode: int, actions: list[Any], expected_hash: int, progress: np.ndarray) -> bool:
        """Restore environment i by repeating the actions of its current episode.

        The replay fails if the hash differs. That happens if the environment depends on more than seed and actions, or
        if its library has changed. The episode is then skipped and the next one starts.

        Args:
            i: position of the environment within the range.
            episode: number of the episode.
            actions: the episode's actions so far.
            expected_hash: the value of `hashes` after these actions.
            progress: [1], increased by 1 for each step.

        Returns:
            Whether the replay succeeded.
        """
        ended = False
        try:
            self.reset_env(i, episode)
            for action in actions:
                progress += 1
                _, terminated, truncated = self._advance(i, action)
                ended = terminated or truncated
                if ended:  # the original episode has not ended yet
                    break
        except EnvError as error:
            self._skip_episode(i, error)
            return False
        self.obs[0][i, self._hidden] = 0.0
        if self.hashes[i] == expected_hash and not ended:
            return True
        self._reset_next(i)
        return False

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """Step environment i. Returns (reward, terminated, truncated)."""
        try:
            returned = self._step_functions[i](action)
        except FAILURES as error:
            reraise_ctrl_c(error)
            raise self._error(i, f"step raised {describe_error(error)}", user_traceback(error)) from error
        try:
            observation, reward, terminated, truncated, _ = returned
        except Exception as error:  # it may be of any type
            raise self._error(i, f"step returned {result_of(returned)}; {STEP_RULE}") from error
        try:
            number = float(reward)
        except Exception as error:
            raise self._error(i, f"step returned the reward {brief(reward)}; it must be one number") from error
        self._store_checked(i, "step", observation, zlib.crc32(_DOUBLE.pack(number), self.hashes[i]))
        if not -MAX_REWARD <= number <= MAX_REWARD:
            raise self._reward_error(i, number)
        self.returns[i] += number
        self.lengths[i] += 1
        return number, terminated, truncated

    def _store_checked(self, i: int, call: str, observation: Any, hashed: int) -> None:
        """Store an observation that `call` has returned. Raise EnvError if it does not belong to its space."""
        try:
            self._store(i, observation, hashed)
        except ObservationError as error:
            raise self._error(i, f"{call} returned an observation {error.clause}") from error
        except Exception as error:  # the values may be of any type
            reason = f"that cannot be converted to numbers: {error}"
            raise self._error(i, f"{call} returned an observation {reason}") from error

    def _store_vector(self, i: int, observation: Any, hashed: int) -> None:
        """Store an observation that is one vector, and continue the hash `hashed` with it."""
        (obs,) = self._env_obs[i]
        if getattr(observation, "shape", None) != obs.shape:  # the assignment below would broadcast a single number
            shape = np.shape(observation)
            if shape != obs.shape:
                raise ObservationError((), f"has shape {shape}, but its space has shape {obs.shape}")
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
        observation = self.handles[i].reset(episode)
        self.returns[i] = 0.0
        self.lengths[i] = 0
        self._store_checked(i, "reset", observation, 0)
        self.obs[0][i, self._hidden] = 0.0
        self._check_finite(i, "reset")

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
        self._remake(i)
        for attempts_left in reversed(range(START_ATTEMPTS)):
            try:
                self.reset_env(i, self.handles[i].episode + 1)
                break
            except EnvError as reset_error:
                if not attempts_left:
                    raise
                log.warning("%s; skipping this episode", reset_error)
        return EpisodeEnd(i, (), False, True, 0.0, 0)

    def _remake(self, i: int) -> None:
        """Create environment i again."""
        handle = self.handles[i]
        handle.close()
        handle.make()
        self._step_functions[i] = handle.step

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
