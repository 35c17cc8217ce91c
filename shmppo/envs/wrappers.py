"""Action masks: from `info["action_mask"]` to the logits of actions that are not allowed.

A mask is a leaf of the observation that no encoder is shown. So it is stored, carried over, hashed and replayed as the
observation that it came with.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo.errors import ConfigError

MASK_KEY = "action_mask"


def first_allowed(space: Any, observation: dict[str, Any]) -> Any:
    """The action of a Discrete or MultiDiscrete space that takes the first choice that the mask allows, everywhere."""
    mask = observation[MASK_KEY]
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(np.argmax(mask))
    sizes = space.nvec.reshape(-1)
    choices = [int(np.argmax(part)) for part in np.split(mask, np.cumsum(sizes)[:-1])]
    return np.reshape(choices, space.nvec.shape) + space.start


class ActionMaskWrapper(gymnasium.Wrapper):
    """Shows the mask beside the observation: one row of 0 and 1 over all choices of all dimensions."""

    def __init__(self, env: gymnasium.Env, where: str) -> None:
        """where: what the environment is named by in a message. Raises ConfigError for actions without choices."""
        super().__init__(env)
        space = env.action_space
        if isinstance(space, spaces.Discrete):
            sizes = [int(space.n)]
        elif isinstance(space, spaces.MultiDiscrete):
            sizes = space.nvec.reshape(-1).tolist()
        else:
            raise ConfigError(f"--action-masks needs Discrete or MultiDiscrete actions, but {where} has {space}")
        self._size = sum(sizes)
        self._begins = np.cumsum([0, *sizes[:-1]])
        shown = [("obs", env.observation_space), (MASK_KEY, spaces.MultiBinary(self._size))]
        self.observation_space = spaces.Dict(shown)  # of pairs: their order is kept, and the mask comes last

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return {"obs": observation, MASK_KEY: self._mask(info)}, info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        # What an episode ends with is not acted on, and environments that allow nothing there are right to.
        mask = np.ones(self._size, np.uint8) if terminated or truncated else self._mask(info)
        return {"obs": observation, MASK_KEY: mask}, reward, terminated, truncated, info

    def _mask(self, info: dict[str, Any]) -> np.ndarray:
        """uint8 [P]. Raises ValueError for no mask, one of another size, or one that leaves a dimension no choice."""
        given = info.get(MASK_KEY)
        if given is None:
            raise ValueError(f"info has no {MASK_KEY}, which --action-masks asks for")
        parts = given if isinstance(given, (tuple, list)) else [given]
        flat = np.concatenate([np.reshape(part, -1) for part in parts])
        if len(flat) != self._size:
            raise ValueError(f"info[{MASK_KEY!r}] holds {len(flat)} numbers, but there are {self._size} actions")
        allowed = (flat != 0).astype(np.uint8)
        if not np.bitwise_or.reduceat(allowed, self._begins).all():
            raise ValueError(f"info[{MASK_KEY!r}] allows no action")
        return allowed


class PreviousStepWrapper(gymnasium.Wrapper):
    """Shows the policy the last action (as the environment was given it) and reward; zeros where an episode begins."""

    def __init__(self, env: gymnasium.Env, *, action: bool, reward: bool) -> None:
        super().__init__(env)
        shown: dict[str, spaces.Space] = {"obs": env.observation_space}
        self._none: dict[str, np.ndarray] = {}
        if action:
            flat = spaces.flatten_space(env.action_space)
            if not isinstance(flat, spaces.Box):
                raise ConfigError(f"--prev-action cannot show the action space {env.action_space}; leave it out")
            one_hot = not np.issubdtype(flat.dtype, np.floating)
            size = flat.shape[0]
            shown["prev_action"] = spaces.MultiBinary(size) if one_hot else spaces.Box(-np.inf, np.inf, (size,))
            self._none["prev_action"] = np.zeros(size, flat.dtype)
        if reward:
            shown["prev_reward"] = spaces.Box(-np.inf, np.inf, (1,))
            self._none["prev_reward"] = np.zeros(1, np.float32)
        self.observation_space = spaces.Dict(shown)

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return {"obs": observation, **self._none}, info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        # As it was given: an environment may change it.
        given = spaces.flatten(self.env.action_space, action) if "prev_action" in self._none else None
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown = {"obs": observation}
        if given is not None:
            shown["prev_action"] = given
        if "prev_reward" in self._none:
            shown["prev_reward"] = np.array([reward], np.float32)
        return shown, reward, terminated, truncated, info
