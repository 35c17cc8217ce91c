"""Demonstrations: episodes in an NPZ file or a Minari data set, how they are recorded, and how a run plays them back.

A file contains no pickled objects, so loading it runs no code. Episodes follow each other in its arrays:

- `obs`, or one array per leaf such as `obs/camera`: observations as stored, before normalization,
  [steps + episodes, …]. An episode has one before each of its steps, and the last one.
- `actions`: as sampled, float32 [steps, A]; `Distribution.to_env` converts them to those of the environment.
- `rewards`, `terminated`, `truncated`: [steps]. If an episode was stopped, its last step is truncated.
- `lengths`: int64 [episodes], numbers of steps.
- `description`: JSON text.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shmppo.config.checks import require, shown
from shmppo.config.info_keys import InfoKey
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.inspection import inspect_task
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import EnvHandle, EpisodeEnd, EpisodeToRestore, VectorEnv
from shmppo.envs.wrappers import batch_actions, is_allowed
from shmppo.errors import ConfigError, EnvError
from shmppo.extensions.teaching.options import MINARI, TeachingOptions
from shmppo.spaces.stored import space_from_json
from shmppo.utils.files import make_parent_directory, open_file, replaced_file, user_path
from shmppo.utils.rng import PLAYBACK, keyed_generator

OUTCOMES = ("rewards", "terminated", "truncated")
"""Names of the arrays that `VectorEnv.step` writes."""


class Recorder:
    """Records the episodes that successive batches of environments play."""

    def __init__(self, path: Path) -> None:
        """Prepare to write a file. Raises ConfigError if it cannot be written."""
        make_parent_directory(path, "--record")
        self._path = path
        self._episodes: list[list[np.ndarray]] = []
        self._steps: list[list[np.ndarray]] = []  # of the current batch
        self._finals: dict[int, tuple[np.ndarray, ...]] = {}

    def step(self, envs: VectorEnv, sampled: np.ndarray, actions: list[Any], *outcome: np.ndarray) -> list[EpisodeEnd]:
        """Record a step of the environments of a batch, and return the episodes that ended.

        Args:
            sampled: the actions as sampled, float32 [n, A].
            actions, outcome: the arguments of `VectorEnv.step`.
        """
        require(envs.active is None, "--record does not support several agents; leave it out")
        obs = [leaf.copy() for leaf in envs.obs]
        ended = envs.step(actions, *outcome)
        self._steps.append([*obs, *(array.copy() for array in (sampled, *outcome))])
        self._finals.update({end.i: end.final for end in ended})
        return ended

    def end_batch(self, envs: VectorEnv, lengths: Sequence[int]) -> None:
        """Add the episodes of a batch. lengths: [n], their numbers of steps."""
        columns = [np.stack(column) for column in zip(*self._steps, strict=True)]  # [T, n, …]
        for i, length in enumerate(lengths):
            episode = [column[:length, i] for column in columns]
            for k, final in enumerate(self._finals.get(i, [leaf[i] for leaf in envs.obs])):  # missing: it was stopped
                episode[k] = np.concatenate([episode[k], final[np.newaxis]])
            self._episodes.append(episode)
        self._steps, self._finals = [], {}

    def save(self, config: TrainConfig, task: EnvSpec) -> None:
        """Write the episodes to the file."""
        _write(self._path, self._episodes, config, task)


class DemonstrationRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment of a run, which records the episodes that a program plays in it, for --demonstrations.

    Use it as a context manager: `close` writes the file, also after an exception. An episode that is not played to its
    end counts as truncated. What --hide-obs hides is recorded, too.
    """

    def __init__(self, config: TrainConfig, path: str | Path) -> None:
        """Make the environment.

        Args:
            config: of the runs that will learn from the file.
            path: of the NPZ file.

        Raises:
            ConfigError: if the environment cannot be made or recorded, or if the file cannot be written.
        """
        self._path = user_path(path, "path")
        make_parent_directory(self._path, "path")
        cloning = TrainConfig(**config.fields() | {"objective": "clone", "demonstrations": str(path)})
        self._task = inspect_task(cloning)
        # This refuses environments that cannot be recorded. The episodes are recorded as the environment returns them.
        self._config = replace(cloning, **self._task.derived, hide_obs=())
        self._obs: list[list[np.ndarray]] = []  # of the current episode
        self._steps: list[tuple[Any, float, bool, bool]] = []
        self._episodes: list[list[np.ndarray]] = []
        super().__init__(make_environment(self._config))

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. arguments: of the environment's `reset`."""
        self._end_episode()
        obs, info = super().reset(**arguments)
        self._obs.append(self._stored(obs))
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, after `reset`. action: as the environment takes it, and as its mask allows."""
        require(bool(self._obs), "`step` was called before `reset`; begin each episode with `reset`")
        own = copy.deepcopy(action)  # the environment may change it
        allowed = not self._config.action_masks or is_allowed(self.action_space, self._obs[-1][-1], own)
        require(allowed, f"action {shown(own)} is forbidden by the action mask; choose another one")
        obs, reward, terminated, truncated, info = super().step(action)
        self._obs.append(self._stored(obs))
        self._steps.append((own, float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            self._end_episode()
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Write the file, if a step was recorded, and close the environment."""
        try:
            self._end_episode()
            if self._episodes:
                _write(self._path, self._episodes, self._config, self._task)
        finally:
            super().close()

    def _stored(self, obs: Any) -> list[np.ndarray]:
        return [np.array(leaf.to_storage(leaf.extract(obs)), leaf.dtype) for leaf in self._task.observation.leaves]

    def _end_episode(self) -> None:
        if self._steps:
            actions, *outcomes = zip(*self._steps, strict=True)
            obs = [np.stack(leaf) for leaf in zip(*self._obs, strict=True)]
            sampled = self._task.distribution.from_env(batch_actions(self.action_space, actions))
            self._episodes.append([*obs, sampled, *map(np.array, outcomes)])
        self._obs, self._steps = [], []


def _write(path: Path, episodes: Sequence[Sequence[np.ndarray]], config: TrainConfig, task: EnvSpec) -> None:
    """Write episodes to a file. They do not contain what --hide-obs hides."""
    arrays = _join(episodes, task)
    about = {"env": config.env_id, "env_kwargs": config.env_kwargs, "hide_obs": config.hidden_indices}
    about |= {"return_mean": arrays["rewards"].sum() / len(episodes), **_required(config, task)}
    with replaced_file(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays, description=json.dumps(about))  # type: ignore[arg-type]


def _join(episodes: Sequence[Sequence[np.ndarray]], task: EnvSpec) -> dict[str, np.ndarray]:
    """Join episodes, each of which has the arrays of a file in their order."""
    names = [*(leaf.field for leaf in task.observation.leaves), "actions", *OUTCOMES]
    arrays = {name: np.concatenate(parts) for name, *parts in zip(names, *episodes, strict=True)}
    arrays["lengths"] = np.array([len(rewards) for *_, rewards, _, _ in episodes])
    last = np.cumsum(arrays["lengths"]) - 1
    arrays["truncated"][last] |= ~arrays["terminated"][last]
    return arrays


def _space_texts(task: EnvSpec) -> dict[str, str]:
    """Return the observation space and the action space as text."""
    names = ("observation_space", "action_space")
    return {name: " ".join(str(space_from_json(task.stored[name])).split()) for name in names}


def _required(config: TrainConfig, task: EnvSpec) -> dict[str, Any]:
    """Return what a recording and a run that learns from it must have in common."""
    return {**_space_texts(task), "squash_actions": config.squash_actions, "distribution": config.distribution}


def load_demonstrations(config: TrainConfig, task: EnvSpec) -> dict[str, np.ndarray]:
    """Load the demonstrations that --demonstrations names.

    Raises:
        ConfigError: if they cannot be read, or if they do not fit the environment or the options of the run.
    """
    name = str(TeachingOptions.of(config).demonstrations)
    try:
        if name.startswith(MINARI):
            return _from_minari(name.removeprefix(MINARI), config, task)
        with open_file(Path(name).resolve()) as opened, np.load(opened) as file:
            _check_arrays(file, config, task)
            arrays = dict(file)
        lengths = arrays["lengths"]
        if lengths.min() < 1 or lengths.max() > len(arrays["actions"]) or lengths.sum() != len(arrays["actions"]):
            raise ValueError("its lengths are not those of its episodes")
        return arrays
    except (ImportError, OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(
            f"--demonstrations {name} cannot be read ({str(error).partition('. ')[0]}); name a file that evaluate "
            "--record has written, or minari:ID (extra minari) of a data set that minari download has fetched"
        ) from error


def _check_arrays(file: Any, config: TrainConfig, task: EnvSpec) -> None:
    """Check the description and the sizes of all arrays in an opened NPZ file, before the arrays are read.

    Raises:
        ConfigError: if the description does not fit the run.
        ValueError, KeyError: if an array is missing, or has another shape than a recording of this environment.
        ValueError: if the arrays are larger than the memory of the machine.
    """
    shapes, size = dict[str, tuple[int, ...]](), 0
    if sorted({*file.zip.namelist()}) != sorted(f"{name}.npy" for name in file.files):
        raise ValueError("its names are not those of arrays")
    for name in file.files:
        with file.zip.open(f"{name}.npy") as member:
            np.lib.format.read_magic(member)
            shapes[name], _, kind = np.lib.format.read_array_header_1_0(member)
        size += math.prod(shapes[name]) * kind.itemsize
    if size > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise ValueError(f"it has {size / 2**30:.1f} GiB, but this machine has {memory / 2**30:.1f} GiB of memory")
    _check(json.loads(str(file["description"])), config, task)
    (steps, _), (episodes,) = shapes["actions"], shapes["lengths"]
    expected = {leaf.field: (steps + episodes, *leaf.shape) for leaf in task.observation.leaves}
    expected |= {"actions": (steps, task.distribution.action_size)} | dict.fromkeys(OUTCOMES, (steps,))
    if wrong := [name for name, shape in expected.items() if shapes[name] != shape]:
        raise ValueError(f"its array {wrong[0]} has the shape {shapes[wrong[0]]}, but {expected[wrong[0]]} is needed")


def _from_minari(dataset_id: str, config: TrainConfig, task: EnvSpec) -> dict[str, np.ndarray]:
    """Convert a Minari data set. Its actions are those that the environment received."""
    import minari

    dataset = minari.load_dataset(dataset_id)
    spaces = {name: " ".join(str(getattr(dataset, name)).split()) for name in _space_texts(task)}
    _check({"hide_obs": (), **_required(config, task), **spaces}, config, task)
    episodes = []
    for one in dataset:
        obs = [leaf.to_storage(leaf.extract(one.observations), (len(one) + 1,)) for leaf in task.observation.leaves]
        actions = task.distribution.from_env(one.actions)
        episodes.append([*obs, actions, one.rewards, one.terminations, one.truncations])
    return _join(episodes, task)


def _check(about: dict[str, Any], config: TrainConfig, task: EnvSpec) -> None:
    """Raise ConfigError if demonstrations with this description do not fit a run."""
    where = f"--demonstrations {TeachingOptions.of(config).demonstrations}"
    for key, wanted in _required(config, task).items():
        require(about[key] == wanted, f"{where} has {key} {about[key]}, but the run has {wanted}; use the same")
    hidden = sorted(set(about["hide_obs"]) - set(config.hidden_indices))
    require(not hidden, f"{where} was recorded without the observation indices {hidden}; add them to --hide-obs")


class PlaybackVectorEnv(VectorEnv):
    """A range of environments, each of which plays all recorded episodes in a random order, again and again.

    `step` ignores the given actions. The hash of each episode is that of all demonstrations.
    """

    def __init__(self, config: TrainConfig, task: EnvSpec, low: int, high: int) -> None:
        """Load the demonstrations for the environments low … high − 1. Errors: see `load_demonstrations`."""
        super().__init__(config, task, [EnvHandle(n) for n in range(low, high)])
        self._data = data = load_demonstrations(config, task)
        self._hash = functools.reduce(lambda crc, array: zlib.crc32(array.tobytes(), crc), data.values(), 0)
        self._seed, self._first_env = config.seed, config.first_env
        self._begins = np.cumsum(data["lengths"]) - data["lengths"]  # first step of each recorded episode
        # The recorded episode that each environment plays, and its next step among all steps.
        self._recorded, self._next = np.zeros((2, high - low), np.int64)
        self._played: list[np.ndarray] = []  # the recorded actions [n, A] of each step since `take_actions`

    def reset_env(self, i: int, episode: int, steps: int = 0) -> None:
        """Start the episode with this number in environment i, or continue it after some steps."""
        self._begin_episode(i, episode)
        self.hashes[i] = self._hash
        epoch, position = divmod(episode, len(self._begins))
        env_index = self._first_env + self.handles[i].index
        generator = keyed_generator(self._seed, PLAYBACK, index=env_index, epoch=epoch)
        self._recorded[i] = generator.permutation(len(self._begins))[position]
        self._next[i] = self._begins[self._recorded[i]] + steps
        self._observe([i])
        self._hide()

    def restore(self, episodes: Sequence[EpisodeToRestore], progress: np.ndarray) -> list[bool]:
        """Continue every episode after its steps so far, unless the demonstrations have changed."""
        progress += 1
        for i, one in enumerate(episodes):
            if one.actions is None or one.expected_hash != self._hash:
                self.reset_env(i, one.number + 1)
            else:
                self.reset_env(i, one.number, len(one.actions))
        return [handle.episode == one.number for handle, one in zip(self.handles, episodes, strict=True)]

    def take_actions(self) -> np.ndarray:
        """Return the recorded actions of the steps since the last call, float32 [steps, n, A]."""
        actions, self._played = np.stack(self._played), []
        return actions

    def close(self) -> None:
        pass

    def _step_environments(
        self, actions: list[Any], rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[int, EnvError]:
        data, step = self._data, self._next
        self._played.append(data["actions"][step])
        rewards[:], terminated[:], truncated[:] = (data[name][step] for name in OUTCOMES)
        self._next += 1
        self._observe(range(len(step)))
        return {}

    def _observe(self, indices: Sequence[int]) -> None:
        """Copy the current observations of some environments to `obs`."""
        rows = (self._next + self._recorded)[indices]  # each earlier episode has one observation more than steps
        for obs, leaf in zip(self.obs, self.observation.leaves, strict=True):
            obs[indices] = self._data[leaf.field][rows]

    def _read_info(self, key: InfoKey, indices: Sequence[int]) -> np.ndarray:
        return np.full(len(indices), np.nan)
