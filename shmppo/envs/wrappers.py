"""Wrappers of environments.

`ActionMaskWrapper` and `PreviousStepWrapper` add to the observation, for --action-masks, --prev-action, and
--prev-reward. The wrapped observation is a Dict, so the additions are leaves of the observation. They are stored,
hashed, and replayed like every other leaf.

`RepeatAction`, `ResetOnce`, `FirstActions`, and `SplitObservation` are for --wrappers, for example `--wrappers
"shmppo.envs.wrappers:RepeatAction(steps=8)"`. Presets use some of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from shmppo.config.checks import require
from shmppo.errors import ConfigError

MASK_KEY = "action_mask"


def allowed_action(space: Any, mask: np.ndarray, choose: Callable[[np.ndarray], Any]) -> Any:
    """Return an action that a mask allows.

    Args:
        space: a Discrete or MultiDiscrete action space.
        mask: 0 or 1 for each choice of each action dimension, concatenated.
        choose: returns the index of a choice from the mask of one dimension.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(choose(mask))
    choices = [int(choose(part)) for part in np.split(mask, mask_starts(space)[1:])]
    return np.reshape(choices, space.nvec.shape) + space.start


def fits(action: Any, space: Any) -> bool:
    """Whether an action has the form of a space. Numbers may lie outside a Box."""
    if isinstance(space, spaces.Box):
        try:
            numbers = np.asarray(action)
        except ValueError:  # lists of different lengths
            return False
        return numbers.shape == space.shape and numbers.dtype.kind in "biuf"
    return action is not None if isinstance(space, (spaces.Dict, spaces.Tuple)) else bool(space.contains(action))


def is_allowed(space: Any, mask: np.ndarray, action: Any) -> bool:
    """Whether a mask allows an action of a space. Arguments: see `allowed_action`."""
    return bool(mask[np.ravel(action - space.start) + mask_starts(space)].all())


def mask_starts(space: Any) -> np.ndarray:
    """Return the first index of each action dimension in a mask."""
    return np.cumsum([0, *np.ravel(getattr(space, "nvec", ()))[:-1]], dtype=np.int64)


def random_action(space: Any) -> Any:
    """Return a sample of an action space in the types of training: a Discrete action is an int, not np.int64."""
    return _with_int(space.sample())


def _with_int(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _with_int(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(map(_with_int, action))
    return int(action) if isinstance(action, np.integer) else action


class RepeatAction(gymnasium.Wrapper):
    """Repeats each action for several steps, or until the episode ends. The reward is the sum of their rewards."""

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        """Wrap an environment.

        Args:
            env: the environment.
            steps: steps per action.

        Raises:
            ConfigError: if `steps` is less than 1.
        """
        super().__init__(env)
        require(steps >= 1, f"--wrappers RepeatAction has steps={steps}; it must be at least 1")
        self.steps = steps
        fps = env.metadata.get("render_fps") or 30  # as without this wrapper, see `RenderedHandle`
        self.metadata = {**env.metadata, "render_fps": fps / steps}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment up to `steps` times with the same action; see `gymnasium.Env.step`."""
        total = 0.0
        for _ in range(self.steps):
            # A copy: the environment may change its action in place.
            observation, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class ResetOnce(gymnasium.Wrapper):
    """Resets the environment with seed 0 when it is wrapped, so that its first seed does not change later episodes.

    PyBullet's robots, for example, save their start in the first reset.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        env.reset(seed=0)


class FirstActions(gymnasium.Wrapper):
    """Restricts a Discrete action space to its first actions. Use it if the others have no effect in a task."""

    def __init__(self, env: gymnasium.Env, count: int) -> None:
        """Wrap an environment.

        Args:
            env: an environment with a Discrete action space.
            count: number of actions to keep.

        Raises:
            ConfigError: if the environment does not have that many actions.
        """
        super().__init__(env)
        space: Any = env.action_space
        require(1 <= count <= space.n, f"--wrappers FirstActions has count={count}; it must be one of 1 … {space.n}")
        self.action_space = spaces.Discrete(count, start=int(space.start))


class SplitObservation(gymnasium.ObservationWrapper):
    """Splits a vector observation into a Dict of named parts, for --actor-obs and --critic-obs.

    Parts may overlap. One may be the whole vector, for a policy that was trained without this wrapper.
    """

    def __init__(self, env: gymnasium.Env, **parts: Sequence[int | None]) -> None:
        """Wrap an environment.

        Args:
            env: an environment whose observation is a Box with one axis.
            parts: by name, the arguments of `slice` that select a part: [8, None] is all but the first 8 numbers.

        Raises:
            ConfigError: if the observation is no vector, or if a part is empty.
        """
        super().__init__(env)
        box: Any = env.observation_space
        self._parts = {name: slice(*bounds) for name, bounds in parts.items()}
        require(
            isinstance(box, spaces.Box) and len(box.shape) == 1 and all(map(len, self.observation(box.low).values())),
            f"--wrappers SplitObservation needs an observation that is one vector, and none of its parts may be empty, "
            f"but the observation is {box}; correct the parts, or remove the wrapper",
        )
        chosen = self._parts.items()
        boxes = [(name, spaces.Box(box.low[part], box.high[part], dtype=box.dtype)) for name, part in chosen]
        self.observation_space = spaces.Dict(boxes)

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of an observation."""
        return {name: observation[part] for name, part in self._parts.items()}


class ActionMaskWrapper(gymnasium.Wrapper):
    """Adds the action mask of `info` to the observation, which becomes {"obs": observation, "action_mask": mask}.

    The mask is uint8 [P]: 0 or 1 for each choice of each action dimension, concatenated. After the last step of an
    episode the mask is all ones. No action follows, so the environment need not provide a mask there.
    """

    def __init__(self, env: gymnasium.Env, where: str) -> None:
        """Wrap an environment.

        Args:
            env: an environment with Discrete or MultiDiscrete actions.
            where: name of the environment for error messages.

        Raises:
            ConfigError: for any other action space.
        """
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            raise ConfigError(f"--action-masks needs Discrete or MultiDiscrete actions, but {where} has {space}")
        self._size, self._starts = spaces.flatdim(space), mask_starts(space)
        parts = [("obs", env.observation_space), (MASK_KEY, spaces.MultiBinary(self._size))]
        self.observation_space = spaces.Dict(parts)  # a list of pairs keeps its order, so the mask is the last leaf

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset the environment; see `gymnasium.Env.reset`."""
        observation, info = self.env.reset(**options)
        return {"obs": observation, MASK_KEY: self._mask(info)}, info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step the environment; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        mask = np.ones(self._size, np.uint8) if terminated or truncated else self._mask(info)
        return {"obs": observation, MASK_KEY: mask}, reward, terminated, truncated, info

    def _mask(self, info: dict[str, Any]) -> np.ndarray:
        """Read the mask from `info`, as uint8 [P].

        Raises:
            ValueError: if the mask is missing, has another size, or allows no choice in a dimension.
        """
        value = info.get(MASK_KEY)
        if value is None:
            raise ValueError(f"info has no {MASK_KEY}, which --action-masks requires")
        parts = value if isinstance(value, (tuple, list)) else [value]
        flat = np.concatenate([np.reshape(part, -1) for part in parts])
        if len(flat) != self._size:
            raise ValueError(f"info[{MASK_KEY!r}] has {len(flat)} numbers, but there are {self._size} actions")
        allowed: np.ndarray = (flat != 0).astype(np.uint8)
        if not np.bitwise_or.reduceat(allowed, self._starts).all():
            raise ValueError(f"info[{MASK_KEY!r}] allows no action")
        return allowed


class PreviousStepWrapper(gymnasium.Wrapper):
    """Adds the previous action and reward to the observation. Both are zero at the start of an episode.

    The action is the one that the environment received, flattened. The observation becomes a Dict with the keys "obs",
    "prev_action", and "prev_reward".
    """

    def __init__(self, env: gymnasium.Env, *, action: bool, reward: bool) -> None:
        """Wrap an environment.

        Args:
            env: the environment.
            action: whether to add the previous action.
            reward: whether to add the previous reward.

        Raises:
            ConfigError: if the action space cannot be flattened to an array.
        """
        super().__init__(env)
        parts: dict[str, spaces.Space[Any]] = {"obs": env.observation_space}
        self._zeros: dict[str, np.ndarray] = {}
        if action:
            flat = spaces.flatten_space(env.action_space)
            if not isinstance(flat, spaces.Box):
                raise ConfigError(f"--prev-action does not support the action space {env.action_space}; remove it")
            one_hot = not np.issubdtype(flat.dtype, np.floating)
            size = flat.shape[0]
            parts["prev_action"] = spaces.MultiBinary(size) if one_hot else spaces.Box(-np.inf, np.inf, (size,))
            self._zeros["prev_action"] = np.zeros(size, flat.dtype)
        if reward:
            parts["prev_reward"] = spaces.Box(-np.inf, np.inf, (1,))
            self._zeros["prev_reward"] = np.zeros(1, np.float32)
        self.observation_space = spaces.Dict(parts)

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset the environment; see `gymnasium.Env.reset`."""
        observation, info = self.env.reset(**options)
        return {"obs": observation, **self._zeros}, info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step the environment; see `gymnasium.Env.step`."""
        # Flatten before the step: the environment may change its action in place.
        added = {"prev_action": spaces.flatten(self.env.action_space, action)} if "prev_action" in self._zeros else {}
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "prev_reward" in self._zeros:
            added["prev_reward"] = np.array([reward], np.float32)
        return {"obs": observation, **added}, reward, terminated, truncated, info


def batch_actions(space: spaces.Space[Any], actions: Sequence[Any]) -> Any:
    """Make a batch, as `VectorEnv.step` takes it, of one action per environment."""
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return np.array(actions, space.dtype)
    empty: Any = create_empty_array(space, len(actions))
    return concatenate(space, actions, empty)
