"""Check that an environment is a function of its seed and its actions.

Two processes step the same environment with the same seeds and actions, across resets. Everything that it returns must
be the same bits in both. The processes differ in what must not matter:

- the process id, the hash seed of Python, the state of global random generators, and the time of each call;
- other environments: in the second process, another environment lives in the same vector environment;
- the history: in the second process, the environment has already begun other episodes.

After at least three quarters of the steps, the first process restores the environment of the second one in a new
instance, as a new worker would. It compares the remaining steps of the restored instance. `check_process` starts the
processes.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.mujoco_vector_env import MujocoVectorEnv
from shmppo.envs.spec import Task
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.user_vector_env import UserVectorEnv
from shmppo.envs.vector_env import EpisodeToRestore
from shmppo.envs.wrappers import allowed_action
from shmppo.errors import EnvError
from shmppo.spaces.observations import Leaf, path_name
from shmppo.utils.rng import determinism_check_generator

CHECKED = 1
"""Index of the checked environment. The second process steps environment 0 before it."""
HISTORY_EPISODES, HISTORY_STEPS = 2, 10
RESTORED_LENGTH = 5
"""Steps of an episode before it is restored, if episodes are so long."""
FIRST_OF_HISTORY = 1 << 20
"""Number of the first episode of the history. No checked episode has it."""
_VECTOR_ENVS = {"gymnasium": SyncVectorEnv, "mujoco": MujocoVectorEnv, "vector": UserVectorEnv}
UNROUNDED = "an observation or reward before it is rounded to 32 bits or hidden"
_EPISODES, _ACTIONS = 0, 1  # what the generators of the check are for


@dataclass(frozen=True)
class CheckRequest:
    """What to check. `make_request` returns it."""

    config: TrainConfig
    """The configuration of the run, with a seed of the check."""
    task: Task
    steps: int
    """Number of steps, at least 1."""


class Finding(NamedTuple):
    """The result of a check."""

    steps: int
    """Number of steps that were the same."""
    difference: str | None = None
    """What differed first and where. None: nothing."""
    problem: str | None = None
    """Why not all steps were checked. None: all were, or there is a difference."""


class Outcome(NamedTuple):
    """What one reset or step of the checked environment gave."""

    place: str
    """The step and the episode, for messages."""
    values: dict[str, np.ndarray]
    """Flags, reward, and observations by name. Empty if the environment has raised."""
    raised: str = ""
    """What the environment has raised. "" if it has not."""
    problem: str = ""
    """Why there are no further outcomes: another environment has raised. "" if it has not."""
    saved: EpisodeToRestore | None = None
    """The state of the environment after the step. None: it is not restored after this step."""


def make_request(config: TrainConfig, task: Task, steps: int) -> CheckRequest:
    """Return the request to check the environment of a run. Its random numbers are of no other use in the run."""
    seed = int(determinism_check_generator(config.seed, _EPISODES).integers(2**31))
    return CheckRequest(dataclasses.replace(config, seed=seed, step_times=False), task, steps)


def outcomes_beside_another(request: CheckRequest) -> Iterator[Outcome]:
    """Yield the outcomes of the checked environment in the second process.

    Raises:
        EnvError: if an environment cannot be made.
    """
    checked = CheckedEnv(request, alone=False)
    try:
        _seed_global_generators(2)
        checked.begin_history()
        yield from checked.outcomes()
    except EnvError as error:  # of the other environment, or of the history
        yield Outcome("", {}, problem=error.message)
    finally:
        checked.close()


def compare(request: CheckRequest, others: Iterator[Outcome]) -> Finding:
    """Step the checked environment alone, and compare its outcomes with those of the second process.

    Raises:
        EnvError: if the environment cannot be made.
    """
    checked = CheckedEnv(request, alone=True)
    restored, steps = "", 0
    try:
        _seed_global_generators(1)
        for own, other in zip(checked.outcomes(), others, strict=False):
            if other.problem:
                return Finding(steps, problem=other.problem)
            names = _differing(own, other)
            if names:
                verb = "differ" if len(names) > 1 else "differs"
                return Finding(steps, f"{', '.join(names)} {verb} {own.place}{restored}")
            if own.raised:
                return Finding(steps, problem=own.raised)
            steps = checked.steps
            if other.saved is not None:
                how = "from a snapshot" if other.saved.snapshot is not None else "by a replay"
                restored = f" after a restoration {how}"
                if not checked.restore(other.saved):
                    return Finding(steps, f"a replay of the episode differs, compared {own.place}")
        return Finding(steps)
    finally:
        checked.close()


class CheckedEnv:
    """The checked environment, alone or with another one in the same vector environment.

    Attributes:
        steps: number of checked steps so far.
    """

    def __init__(self, request: CheckRequest, *, alone: bool) -> None:
        """Make the environments. Raises EnvError if that fails."""
        self._request = request
        self._low = CHECKED if alone else 0
        self._i = CHECKED - self._low
        self._seeded = request.task.seeding == "episode"  # so that an episode must not depend on earlier ones
        self._restores = self._seeded
        self._begun = False
        self.steps = 0
        self._taken: list[Any] = []  # actions of the current episode
        self._make()
        # The checked environment is the last one. It has the same generator with and without the other environment.
        streams = reversed(range(len(self._envs.handles)))
        self._generators = [determinism_check_generator(request.config.seed, _ACTIONS + n) for n in streams]
        self._spaces = [copy.deepcopy(self._envs.action_space) for _ in self._generators]
        for space, generator in zip(self._spaces, self._generators, strict=True):
            space.seed(int(generator.integers(2**31)))

    def _make(self) -> None:
        """Make the vector environment."""
        config, task = self._request.config, self._request.task
        self._envs: Any = _VECTOR_ENVS[task.backend](config, task, self._low, CHECKED + 1)

    def begin_history(self) -> None:
        """Begin some other episodes in all environments. Does nothing if episodes may depend on earlier ones."""
        if not self._seeded:
            return
        before = copy.deepcopy((self._generators, self._spaces))
        self._envs.reset_all(FIRST_OF_HISTORY)
        for k in range(1, HISTORY_EPISODES + 1):
            for _ in range(HISTORY_STEPS):
                self._step()
            self._envs.reset_env(self._i, FIRST_OF_HISTORY + 100 * k)
        self._generators, self._spaces = before
        self._begun = True

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes of resets and steps, until all steps are done or the environment raises."""
        steps = self._request.steps
        yield (last := self._reset(0))
        while self.steps < steps and not last.raised:
            last = self._checked_step()
            self.steps += 1
            if not last.raised and self._is_restored_here():
                last, self._restores = last._replace(saved=self._saved()), False
            yield last
            first = self._envs.handles[self._i].episode == 0
            if self._seeded and not last.raised and first and self.steps == (steps + 1) // 2:
                yield (last := self._reset(1))  # the first episode is long; others must be checked, too

    def _is_restored_here(self) -> bool:
        """Whether the environment is restored after this step: once, and if possible not at an episode's start."""
        steps, length = self._request.steps, self._envs.lengths[self._i]
        return self._restores and self.steps >= steps * (3 / 4 if length >= RESTORED_LENGTH else 9 / 10)

    def _reset(self, episode: int) -> Outcome:
        """Begin an episode. The first call begins it in all environments."""
        place = f"at the reset of episode {episode}"
        try:
            if self._begun:
                self._envs.reset_env(self._i, episode)
            else:
                self._envs.reset_all(episode)
        except EnvError as error:
            return _raised(error, place)
        self._begun, self._taken = True, []
        return Outcome(place, self._stored("observation", [leaf[self._i] for leaf in self._envs.obs]) | self._hash())

    def _checked_step(self) -> Outcome:
        """Step all environments, and return the outcome of the checked one."""
        episode, step = self._envs.handles[self._i].episode, self._envs.lengths[self._i] + 1
        place = f"at step {step} of episode {episode}"
        try:
            return Outcome(place, self._step())
        except EnvError as error:
            return _raised(error, place)

    def _step(self) -> dict[str, np.ndarray]:
        """Step all environments, and return the results of the checked one by name.

        Raises:
            EnvError: if an environment raises.
        """
        envs, i = self._envs, self._i
        actions = [self._action(k) for k in range(len(self._spaces))]
        self._taken.append(copy.deepcopy(actions[i]))  # the environment may change its action in place
        rewards, (terminated, truncated) = np.zeros(len(actions)), np.zeros((2, len(actions)), bool)
        ended = {end.i: end for end in envs.step(actions, rewards, terminated, truncated)}
        flags = {"terminated": terminated[i], "truncated": truncated[i], "reward": rewards[i]}
        values = {name: np.array(value) for name, value in flags.items()}
        if i in ended:
            self._taken = []
            values |= self._stored("final observation", ended[i].final)
        return values | self._stored("observation", [leaf[i] for leaf in envs.obs]) | self._hash()

    def _action(self, k: int) -> Any:
        """Draw the next action of environment k. It obeys the mask of --action-masks."""
        space, generator = self._spaces[k], self._generators[k]
        if not self._envs.observation.has_mask:
            return space.sample()
        return allowed_action(space, self._envs.obs[-1][k], lambda part: generator.choice(np.flatnonzero(part)))

    def _stored(self, name: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Copy the leaves of an observation, as training stores them. Name each after its part."""
        leaves: tuple[Leaf, ...] = self._envs.observation.leaves
        names = [f"{name} {path_name(leaf.keys)!r}" if leaf.keys else name for leaf in leaves]
        return {name: array.copy() for name, array in zip(names, arrays, strict=False)}

    def _hash(self) -> dict[str, np.ndarray]:
        """Return the hash of the episode. It covers bits of numbers that training does not store."""
        return {UNROUNDED: np.array(self._envs.hashes[self._i])}

    def _saved(self) -> EpisodeToRestore:
        """Return what a new instance needs to continue from here."""
        handle, snapshot = self._envs.handles[self._i], None
        if (spec := self._request.task.snapshot) is not None:
            handle.save_snapshot(snapshot := np.zeros(spec.bytes, np.uint8))
        return EpisodeToRestore(handle.episode, self._taken, self._envs.hashes[self._i], snapshot)

    def restore(self, saved: EpisodeToRestore) -> bool:
        """Replace the environment, which is alone, by a new instance that is restored. Return whether that succeeded.

        Raises:
            EnvError: if the new instance cannot be made or raises.
        """
        old = self._envs
        old.close()
        self._make()
        restored: list[bool] = self._envs.restore([saved], np.zeros(1, np.int64))
        for leaf, before in zip(self._envs.obs, old.obs, strict=True):
            leaf[:] = before
        for name in ("returns", "lengths", "hashes"):
            getattr(self._envs, name)[:] = getattr(old, name)
        return restored[0]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


def _raised(error: EnvError, place: str) -> Outcome:
    """Return the outcome of a reset or step that has raised. Raise the error of the other environment again."""
    if error.env_index != CHECKED:
        raise error
    return Outcome(place, {}, raised=error.message)


def _differing(own: Outcome, other: Outcome) -> list[str]:
    """Return the names of the values that differ, with the index of the first different number of an array."""
    if bool(own.raised) != bool(other.raised):
        return ["what the environment raises"]
    names = []
    for name in dict.fromkeys([*own.values, *other.values]):
        first, second = own.values.get(name), other.values.get(name)
        if first is None or second is None:
            names.append(name)
        elif first.tobytes() != second.tobytes():
            names.append(name + _index(first, second))
    return [name for name in names if name != UNROUNDED] or names


def _index(first: np.ndarray, second: np.ndarray) -> str:
    """Return the index of the first number that differs, such as "[3]". "" for arrays of one number."""
    if first.size == 1:
        return ""
    bits = [np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, -1) for array in (first, second)]
    return str(np.argwhere((bits[0] != bits[1]).any(axis=-1))[0].tolist())


def _seed_global_generators(seed: int) -> None:
    """Give the generators that all code of a process shares other states than in the other process."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the environment may use this generator)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
