"""A vector environment that steps Gymnasium environments one after the other."""

from __future__ import annotations

import copy
import logging
import struct
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.checks import shown
from shmppo.config.info_keys import InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import RESET_RULE, STEP_RULE
from shmppo.envs.episode_info import number_of
from shmppo.envs.factory import close_environment, make_environment
from shmppo.envs.schedule import Options
from shmppo.envs.snapshots import restore_snapshot, spaces_of, take_snapshot
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import (
    FIRST_INDEX,
    EpisodeToRestore,
    Progress,
    RenderedHandle,
    VectorEnv,
    as_env_error,
    name_of,
)
from shmppo.errors import EnvError
from shmppo.spaces.observations import DEFINED_BYTES
from shmppo.utils.global_generators import OwnGenerators
from shmppo.utils.rng import episode_seed, seed_spaces
from shmppo.utils.user_code import FAILURES

log = logging.getLogger(__name__)

START_ATTEMPTS = 20  # consecutive episodes that may fail to start before the run ends with an error
_DOUBLE = struct.Struct("d")


class GymnasiumHandle(RenderedHandle):
    """A handle with its own Gymnasium environment. It seeds each episode.

    Attributes:
        step: the environment's `step` method.
        generators: its own generators, which take the place of the global ones in each call.
    """

    def __init__(self, config: TrainConfig, task: EnvSpec, index: int, render_mode: str | None = None) -> None:
        super().__init__(index)
        self._config = config
        self._task = task
        self._render_mode = render_mode
        self.generators = OwnGenerators(task.generators)
        self.make()

    def make(self) -> None:
        """Create the environment, replacing an earlier one.

        Raises:
            ConfigError: if the configuration does not name an environment.
            EnvError: if the environment's own code raises.
        """
        self.generators.seed((self._config.seed, self.stream, "made"))
        with as_env_error(self.index), self.generators:
            self.env = make_environment(self._config, self._render_mode, self._number)
        self.step = self._step if self.generators else self.env.step
        Progress.counter += 1
        self._spaces = spaces_of(self.env)

    @property
    def stream(self) -> int:
        """The index of the environment among all ranks."""
        return self._config.first_env + self.index

    @property
    def _number(self) -> int:
        """A small number that no other environment of the run has at the same time."""
        return self.stream if self.index < FIRST_INDEX else self._config.num_envs + self.index - FIRST_INDEX

    def _step(self, action: Any) -> Any:
        with self.generators:
            return self.env.step(action)

    def reset(self, episode: int, options: Options | None) -> Any:
        """Start the episode with this number and return its first observation.

        Args:
            episode: the number.
            options: of `reset`. None: no options.

        Raises:
            EnvError: if the environment's `reset` raises, or returns something other than a pair.
        """
        self.episode = episode
        self.seed = seed = (
            episode_seed(self._config.seed, self.stream, episode) if self._task.seeding != "never" else None
        )
        self.generators.seed((self._config.seed, self.stream, episode))
        if seed is not None:
            seed_spaces(self._spaces, seed)
        given = {"seed": seed, "options": copy.deepcopy(options)}  # the environment may change the options
        arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        call = f"reset({', '.join(f'{name}={shown(value)}' for name, value in arguments.items())})"
        with as_env_error(self.index, f"{call} of episode {episode} raised"), self.generators:
            returned = self.env.reset(**arguments)
        try:
            observation, _ = returned
        except (TypeError, ValueError) as error:
            raise EnvError(self.index, f"reset returned {shown(returned)}; {RESET_RULE}") from error
        return observation

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        if self._task.snapshot is not None:
            with as_env_error(self.index, "get_state raised"):
                take_snapshot(self.env, self._task.snapshot, snapshot)

    def restore_snapshot(self, snapshot: np.ndarray) -> None:
        """Restore what `save_snapshot` wrote. The episode of the snapshot must have been started before."""
        assert self._task.snapshot is not None
        with as_env_error(self.index, "set_state raised"):
            restore_snapshot(self.env, self._task.snapshot, snapshot)

    def close(self) -> None:
        with self.generators:
            close_environment(self.env, name_of(self.index))


def make_handles(
    kind: type[GymnasiumHandle], config: TrainConfig, task: EnvSpec, indices: range, render_mode: str | None
) -> list[GymnasiumHandle]:
    """Make a handle for each index. If one cannot be made, close the environments of the others."""
    with ExitStack() as made:
        handles = [made.enter_context(closing(kind(config, task, n, render_mode))) for n in indices]
        made.pop_all()
    return handles


class SyncVectorEnv(VectorEnv):
    """A vector environment that steps its environments one after the other.

    With `skip_bad_episodes`, an environment that fails is created again, repeats the failed episode once to find out
    whether the failure follows from seed and actions, and continues with its next episode.
    """

    handles: list[GymnasiumHandle]
    handle_type = GymnasiumHandle

    def __init__(self, config: TrainConfig, task: EnvSpec, low: int, high: int, render_mode: str | None = None) -> None:
        super().__init__(config, task, make_handles(self.handle_type, config, task, range(low, high), render_mode))
        self._skip_failed = config.skip_bad_episodes
        leaf = self.observation.leaves[0]
        self._is_vector = not leaf.keys and leaf.kind == "vector" and len(leaf.env_shape) == 1
        self._infos: list[Any] = [{} for _ in self.handles]  # of the last step of each environment
        # Of the current episodes, if failed ones are skipped: options of the reset, and actions. None: not known.
        self._begun: list[tuple[Options | None, list[Any] | None]] = [(None, None) for _ in self.handles]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one environment."""
        return self.handles[0].env.action_space

    def reset_all(self, episode: int) -> None:
        for i in range(len(self.handles)):
            self._reset_or_skip(i, episode)

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        failures: dict[int, EnvError] = {}
        results = []
        self._stepped[:] = [action is not None for action in actions]
        for i, action in enumerate(actions):
            result = 0.0, False, False  # reward, terminated, truncated
            if action is not None:
                try:
                    result = self._advance(i, action)
                except EnvError as error:
                    failures[i] = error
            results.append(result)
        rewards[:], terminated[:], truncated[:] = zip(*results, strict=True)
        return failures

    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        return [self._restore_env(i, episode, progress) for i, episode in enumerate(episodes)]

    def _restore_env(self, i: int, episode: EpisodeToRestore, progress: np.ndarray) -> bool:
        """Restore environment i, from a snapshot or by repeating the actions of its current episode.

        The replay fails if the hash differs. That happens if the environment depends on more than seed and actions, or
        if its library has changed. The episode is then skipped and the next one starts.

        Args:
            i: position of the environment within the range.
            episode: the episode.
            progress: [1], increased by 1, and by 1 for each repeated step.

        Returns:
            Whether the environment was restored.
        """
        progress += 1
        if episode.snapshot is not None:
            self.reset_env(i, episode.number, episode.options)
            self.handles[i].restore_snapshot(episode.snapshot)
            self._begun[i] = None, None
            return True
        if episode.actions is None:
            self._reset_or_skip(i, episode.number + 1)
            return False
        ended = False
        try:
            self.reset_env(i, episode.number, episode.options)
            for action in episode.actions:
                progress += 1
                _, terminated, truncated = self._advance(i, action)
                self.lengths[i] += 1
                ended = terminated or truncated
                if ended:  # the original episode has not ended yet
                    break
        except EnvError as error:
            self._skip_episode(i, error)
            return False
        self._hide()
        if self.hashes[i] == episode.expected_hash and not ended:
            return True
        self._reset_or_skip(i, self.handles[i].episode + 1)
        return False

    def _advance(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """Step environment i. Returns (reward, terminated, truncated)."""
        if self._skip_failed and (actions := self._begun[i][1]) is not None:
            actions.append(copy.deepcopy(action))  # the environment may change it in place
        try:
            returned = self.handles[i].step(action)
        except FAILURES as error:
            raise self._raised(i, "step", error) from error
        try:
            observation, reward, terminated, truncated, self._infos[i] = returned
            number = float(reward)
            ended = bool(terminated), bool(truncated)
        except Exception as error:  # it may be of any type
            raise self._error(i, f"step returned {shown(returned)} ({error}); {STEP_RULE}") from error
        self._store_leaves(i, "step", observation, zlib.crc32(_DOUBLE.pack(number), self.hashes[i]))
        return number, *ended

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        return np.array([number_of(self._infos[i], key) for i in indices])

    def _store_leaves(self, i: int, call: str, observation: Any, hashed: int) -> None:
        obs = self._env_obs[i][0]
        if not (
            self._is_vector
            and isinstance(observation, np.ndarray)
            and observation.shape == obs.shape
            and observation.dtype.char in DEFINED_BYTES
        ):
            super()._store_leaves(i, call, observation, hashed)
            return
        obs[:] = observation
        self.hashes[i] = zlib.crc32(np.ascontiguousarray(observation).data, hashed)

    def reset_env(self, i: int, episode: int, options: Options | None = None) -> None:
        """Start the episode with this number in environment i. options: of its reset. None: `self.options`."""
        self._begin_episode(i, episode)
        options = self.options if options is None else options
        self._begun[i] = options, []
        first = self.handles[i].reset(episode, options)
        self._store_leaves(i, "reset", first, 0)
        self._hide()
        self._check_finite(i, "reset", self._env_obs[i])

    def _begin_next(self, indices: Sequence[int]) -> None:
        for i in indices:
            self._reset_or_skip(i, self.handles[i].episode + 1)

    def _reset_or_skip(self, i: int, episode: int) -> None:
        """Start an episode. If its reset fails and failed episodes are skipped, start a later one."""
        try:
            self.reset_env(i, episode)
        except EnvError as error:
            self.failed_starts[i] += 1
            self._skip_episode(i, error)

    def _skip_episode(self, i: int, error: EnvError) -> None:
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
        for _ in range(START_ATTEMPTS):
            log.warning("%s: %s; skipping this episode", name_of(error.env_index), error.message)
            self.unrepeated[i] |= not self._fails_again(i)
            self._remake(i)
            try:
                self.reset_env(i, self.handles[i].episode + 1)
                return
            except EnvError as reset_error:
                error = reset_error
                self.failed_starts[i] += 1
        raise error

    def _fails_again(self, i: int) -> bool:
        """Repeat the failed episode of environment i in a new instance. Return whether it fails at the same step.

        The result is True if the actions of the episode are not known.
        """
        episode, (options, actions) = self.handles[i].episode, self._begun[i]
        if actions is None:
            return True
        self._remake(i)
        rewards = np.zeros(len(self.handles))
        try:
            self.reset_env(i, episode, options)
            for action in actions:
                Progress.counter += 1
                rewards[i], _, _ = self._advance(i, action)
        except EnvError:
            return len(self._begun[i][1] or ()) == len(actions)
        failures: dict[int, EnvError] = {}
        self._find_invalid(rewards, failures)
        return i in failures

    def _remake(self, i: int) -> None:
        """Create environment i again."""
        handle = self.handles[i]
        handle.close()
        handle.make()

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
