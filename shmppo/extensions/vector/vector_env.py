"""A vector environment of the user, which steps all environments of the range in one call, and a check of them."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo.config.info_keys import InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.episode_info import numbers_of
from shmppo.envs.factory import close_environment
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import EnvHandle, EpisodeEnd, EpisodeToRestore, VectorEnv, as_env_error
from shmppo.envs.wrappers import batch_actions
from shmppo.errors import ConfigError, EnvError
from shmppo.extensions.vector.single_env import autoreset_mode, open_vector_env, rows_of
from shmppo.spaces.observations import ObservationError, hashable
from shmppo.utils.rng import episode_seed
from shmppo.utils.user_code import FAILURES

RESET_STEP = -1
"""Length of the `EpisodeEnd` of a step in which a vector environment ignored the action and reset an environment. The
step belongs to no episode."""


class UserVectorEnv(VectorEnv):
    """A range of environments that are rows of one vector environment of the user.

    With `EnvSpec.seeding` "episode", each environment is reset with a seed of its own: `reset` gets a list of seeds and
    options["reset_mask"]. Otherwise the vector environment resets its environments itself, and only the first reset is
    seeded: with a list of seeds ("once") or with one number ("never").

    Attributes:
        mode: see `autoreset_mode`.
    """

    def __init__(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> None:
        """Create the environments low … high − 1.

        Raises:
            ConfigError: if `--env` does not name a vector environment.
            EnvError: if the code of the vector environment raises.
        """
        super().__init__(config, task, [EnvHandle(n) for n in range(low, high)])
        self._config, self._seeding = config, task.seeding
        with as_env_error(low):
            self._envs = open_vector_env(config, high - low)
        self.mode = autoreset_mode(self._envs)
        self._all = range(high - low)
        self._infos: Any = {}  # of the current step; never changed in place
        # Whether the next step only resets the environment, and whether the last one has ended its episode.
        self._waiting, self._ended = np.zeros((2, high - low), bool)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one environment."""
        return cast(gymnasium.Space[Any], self._envs.single_action_space)

    def reset_all(self, episode: int) -> None:
        self._reset(self._all, [episode] * len(self._all))

    def reset_env(self, i: int, episode: int) -> None:
        self._reset([i], [episode])

    def step(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> list[EpisodeEnd]:
        resets = np.flatnonzero(self._waiting).tolist()
        ended = super().step(actions, rewards, terminated, truncated)
        return ended + self._finish_resets(resets, truncated) if resets else ended

    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        """Repeat all episodes together, so that they end at the same step. See `VectorEnv.restore`.

        If their resets have no seed of their own, begin the next episodes instead.
        """
        if self._seeding != "episode":
            self._reset(self._all, [episode.number + 1 for episode in episodes])
            return [False] * len(episodes)
        ended = self._repeat(episodes, progress)
        other = {i for i, one in enumerate(episodes) if one.actions is None or self.hashes[i] != one.expected_hash}
        if lost := sorted(ended | other):
            self._reset(lost, [episodes[i].number + 1 for i in lost])
        return [i not in lost for i in self._all]

    def close(self) -> None:
        close_environment(self._envs, "the vector environment")

    def _repeat(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> set[int]:
        """Repeat the actions of episodes. Before an episode begins, its environment is stepped with any action.

        Args:
            episodes: one per environment.
            progress: [1], increased by 1 for each step.

        Returns:
            The environments whose episode ended too early.
        """
        failed: set[int] = set()
        lengths = [len(episode.actions or ()) for episode in episodes]
        steps = max(lengths)
        begins = [steps - length for length in lengths]
        idle = next((action for episode in episodes for action in episode.actions or ()), None)
        rewards = np.zeros(len(self._all))
        terminated, truncated = np.zeros((2, len(self._all)), bool)
        due = set(self._all)
        for t in range(steps + 1):
            due |= {i for i in self._all if begins[i] == t}
            if due:
                self._reset(sorted(due), [episodes[i].number for i in sorted(due)])
            if t == steps:
                break
            actions = [idle] * len(self._all)
            for i in self._all:
                if begins[i] <= t and i not in failed:
                    actions[i] = cast(list[Any], episodes[i].actions)[t - begins[i]]
            due = {end.i for end in self.step(actions, rewards, terminated, truncated)}
            progress += 1
            failed |= {i for i in due if begins[i] <= t}
        return failed

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        try:
            returned = self._envs.step(batch_actions(self._envs.single_action_space, actions))
            observation, given_rewards, terminated[:], truncated[:], self._infos = returned
            rewards[:] = given_rewards
        except FAILURES as error:
            raise self._raised(0, "step", error) from error
        self._store(observation, self._all)
        if self._seeding == "episode":
            self._hash(observation, given_rewards, self._all)
        rewards[self._waiting], terminated[self._waiting], truncated[self._waiting] = 0.0, False, False
        self._stepped[:], self._ended[:] = ~self._waiting, terminated | truncated
        return {}

    def _final_observation(self, i: int) -> tuple[np.ndarray, ...]:
        """Copy the last observation of an episode. See `VectorEnv._final_observation`.

        Raises:
            EnvError: if a vector environment that resets in the same step does not return the last observation.
        """
        if self.mode != "SAME_STEP":
            return super()._final_observation(i)
        with as_env_error(self.handles[i].index, 'reading the last observation from infos["final_obs"] raised'):
            last = self._infos["final_obs"][i]
        values = self._to_storage(last, i)
        final = tuple(value.astype(obs.dtype) for value, obs in zip(values, self.obs, strict=True))
        final[0][self._hidden] = 0.0
        self._check_finite(i, "step", final)
        return final

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        numbers = numbers_of(self._infos, key, len(self._all))
        numbers[self._waiting] = np.nan  # these environments were only reset
        if self.mode == "SAME_STEP" and "final_info" in self._infos:
            numbers[self._ended] = numbers_of(self._infos["final_info"], key, len(numbers))[self._ended]
        return numbers[indices]

    def _store(self, observation: Any, indices: Sequence[int]) -> None:
        """Store a batch of observations, one row per environment in `indices`.

        Raises:
            EnvError: see `_to_storage`.
        """
        for obs, values in zip(self.obs, self._to_storage(observation, indices[0], (len(indices),)), strict=True):
            obs[indices] = values

    def _to_storage(self, observation: Any, i: int, batch: tuple[int, ...] = ()) -> list[np.ndarray]:
        """Convert an observation to one array per leaf.

        Args:
            observation: of one environment, or a batch with one row per environment.
            i: the environment that an error names.
            batch: shape of the batch.

        Raises:
            EnvError: if a part of the observation is missing or does not fit its space.
        """
        try:
            return [leaf.to_storage(leaf.extract(observation), batch) for leaf in self.observation.leaves]
        except ObservationError as error:
            raise self._error(i, f"a call returned invalid observations: {error}") from error

    def _hash(self, observation: Any, rewards: np.ndarray | None, indices: Sequence[int]) -> None:
        """Continue the hash of each episode in `indices` with its row of the whole batch."""
        values = [hashable(leaf.extract(observation)) for leaf in self.observation.leaves]
        if rewards is not None:
            values.insert(0, np.ascontiguousarray(rewards))
        for i in indices:
            for array in values:
                self.hashes[i] = zlib.crc32(array[i : i + 1].data, self.hashes[i])

    def _begin(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin an episode in each of the environments `indices`. `obs` must contain its first observation.

        Raises:
            EnvError: if the observation is not finite.
        """
        self._hide()
        for i, episode in zip(indices, episodes, strict=True):
            self._begin_episode(i, episode)
            self._check_finite(i, "reset", self._env_obs[i])

    def _raised(self, i: int, call: str, error: BaseException) -> EnvError:
        """Create an error for an exception of the library. Any environment of the range may have caused it."""
        first, last = self.handles[0].index, self.handles[-1].index
        return super()._raised(i, f"{call} of the environments {first} … {last}", error)

    def _begin_next(self, indices: Sequence[int]) -> None:
        episodes = [self.handles[i].episode + 1 for i in indices]
        if self._seeding == "episode":
            self._reset(indices, episodes)
        elif self.mode == "SAME_STEP":
            self._begin(indices, episodes)
        else:
            self._waiting[indices] = True

    def _finish_resets(self, indices: Sequence[int], truncated: np.ndarray) -> list[EpisodeEnd]:
        """Begin the next episodes of the environments that this step has reset instead of stepping them.

        The step has no outcome. For the learner it is like a step that failed.
        """
        truncated[indices] = True
        self._waiting[indices] = False
        self._begin(indices, [self.handles[i].episode + 1 for i in indices])
        return [EpisodeEnd(i, (), False, True, 0.0, RESET_STEP) for i in indices]

    def _reset(self, indices: Sequence[int], episodes: Sequence[int]) -> None:
        """Start one episode in each of the given environments; all of them if resets are not seeded per episode."""
        streams = [self._config.first_env + handle.index for handle in self.handles]
        seeds: list[int | None] = [None] * len(streams)
        for i, episode in zip(indices, episodes, strict=True):
            self.handles[i].seed = seeds[i] = episode_seed(self._config.seed, streams[i], episode)
        mask = np.zeros(len(streams), bool)
        mask[indices] = True
        options = None if mask.all() else {"reset_mask": mask}
        try:
            observation, _ = self._envs.reset(seed=seeds[0] if self._seeding == "never" else seeds, options=options)
            rows = rows_of(observation, indices)
        except FAILURES as error:
            raise self._raised(0, "reset", error) from error
        self._store(rows, indices)
        self._begin(indices, episodes)
        if self._seeding == "episode":
            self._hash(observation, None, indices)


# --- Each environment must depend only on its own seed and actions, so that the number of workers does not matter

CHECKED_STEPS, RESET_AFTER, MAX_WIDTH = 64, 16, 32


def check_rows(config: TrainConfig, task: EnvSpec, action_space: spaces.Space[Any]) -> EnvSpec:
    """Compare a vector environment that has up to MAX_WIDTH environments with others that have one.

    They get the same seeds and actions for CHECKED_STEPS steps. All results must be the same bits. This also shows
    whether every episode can be seeded, or only the first one of each environment.

    Returns:
        The task with its seeding, and with the reason if its runs are not reproducible.

    Raises:
        ConfigError: if nothing would reset an environment whose episode has ended.
        EnvError: if a step fails.
    """
    where = f"--env {config.env_id}"
    once, resets_itself = _seeded_once(config, task)
    dependent = ""
    if task.seeding == "episode":
        try:
            difference = _first_difference(config, task, action_space)
            if difference is None:
                return task
            dependent = f"; {difference}: let each environment depend only on its own seed and actions"
        except EnvError:
            if not resets_itself:
                raise
    if not resets_itself:
        raise ConfigError(
            f"{where} has the autoreset mode DISABLED, so every episode is seeded: reset must accept a list of seeds "
            f'and options["reset_mask"], and reset only what this mask selects{dependent}'
        )
    difference = _first_difference(config, once, action_space)
    if once.seeding == "never":
        reason = "reset accepts no list of seeds, so the environments of a worker share one seed"
    elif difference is None:
        return once
    else:
        reason = f"an environment depends on the others: {difference}"
    return dataclasses.replace(once, inexact_reason=f"{where}: {reason}")


def _seeded_once(config: TrainConfig, task: EnvSpec) -> tuple[EnvSpec, bool]:
    """Return the task without a seed per episode, and whether the vector environment resets its environments itself.

    The seeding is "never" if `reset` accepts no list with one seed per environment.
    """
    once = dataclasses.replace(task, seeding="once")
    with contextlib.closing(UserVectorEnv(config, once, 0, 1)) as envs:
        try:
            envs.reset_all(0)
        except EnvError:
            once = dataclasses.replace(task, seeding="never")
        return once, envs.mode != "DISABLED"


def _first_difference(config: TrainConfig, task: EnvSpec, action_space: spaces.Space[Any]) -> str | None:
    """Step wide and narrow vector environments, and describe the first difference. Return None if there is none.

    Raises:
        EnvError: if a step or a reset fails.
    """
    width = min(config.num_envs, MAX_WIDTH)
    with contextlib.ExitStack() as stack:
        wide, *narrow = (
            stack.enter_context(contextlib.closing(UserVectorEnv(config, task, low, high)))
            for low, high in [(0, width), *((i, i + 1) for i in sorted({0, width // 2, width - 1}))]
        )
        for envs in (wide, *narrow):
            envs.reset_all(0)
        action_space.seed(0)
        for step in range(CHECKED_STEPS):
            actions = [action_space.sample() for _ in range(width)]
            results = _step(wide, actions)
            for envs in narrow:
                i = envs.handles[0].index
                if results[i] != _step(envs, actions[i : i + 1])[0]:
                    return f"environment {i} gives other results at step {step + 1} when there are fewer of them"
                if step == RESET_AFTER and task.seeding == "episode" and i == width // 2:
                    for each, position in ((wide, i), (envs, 0)):
                        each.reset_env(position, each.handles[position].episode + 1)
    return None


def _step(envs: UserVectorEnv, actions: list[Any]) -> list[list[bytes]]:
    """Step a vector environment. Return the bits of everything that each environment gave."""
    count = len(actions)
    rewards, flags = np.zeros(count), np.zeros((2, count), bool)
    finals = {end.i: end.final for end in envs.step(actions, rewards, *flags)}
    return [
        [array.tobytes() for array in (*(leaf[i] for leaf in envs.obs), rewards[i], flags[:, i], *finals.get(i, ()))]
        for i in range(count)
    ]
