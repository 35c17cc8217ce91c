"""Environments with unusual spaces. Named in a configuration as `space_environments:Id`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SPACES: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(5, start=2),
    "multidiscrete": spaces.MultiDiscrete([3, 4], start=[0, 1]),
    "multibinary": spaces.MultiBinary([2, 3]),
    "matrix": spaces.Box(-3, 3, (2, 3)),
    "one-key": spaces.Dict({"x": spaces.Box(-1, 1, (2,))}),
    "integers": spaces.Box(-5, 5, (3,), np.int16),
    "image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "stacked": spaces.Box(0, 9, (2, 3, 7, 8), np.uint8),
    "parts": spaces.Dict(
        {"flags": spaces.MultiBinary(3), "inner": spaces.Tuple((spaces.Discrete(4, start=1), spaces.Box(-1, 1, (2,))))}
    ),
    "odd-keys": spaces.Dict(
        {key: spaces.Box(-1, 1, (2,)) for key in ("int", "class", "a b", "a_b", "9", "größe", "*/ x")}
    ),
    "dict": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (36, 36), np.uint8),
            "flags": spaces.MultiBinary(3),
            "inner": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,)), spaces.Dict({"x": spaces.Box(-1, 1)}))),
        }
    ),
}


ACTION_SPACES: dict[str, spaces.Space] = {
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-1, -np.inf]), np.array([3, np.inf]), dtype=np.float64),
    "gripper": spaces.Tuple(
        (spaces.Box(np.array([-0.3, -7], np.float32), np.array([0.1, 1 / 3], np.float32)), spaces.Discrete(3, start=1))
    ),
    "nested": spaces.Dict(
        {
            "arm": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(3)]),
            "gear": spaces.Discrete(3, start=-1),
            "keys": spaces.MultiDiscrete([2, 3]),
        }
    ),
}


class Echo(gymnasium.Env[np.ndarray, Any]):
    """Observes the action that it was given, flattened, and is rewarded for it; truncates after 7 steps."""

    def __init__(self, actions: str) -> None:
        self.action_space = ACTION_SPACES[actions]
        self.observation_space = spaces.flatten_space(self.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(self.observation_space.shape or 0, self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.t += 1
        observation = spaces.flatten(self.action_space, action)
        return observation, float(observation[0] - 0.5 * observation[-1]), False, self.t == 7, {}


class Masked(gymnasium.Env[np.ndarray, Any]):
    """Allows other actions at each step, and none but those; rewards the last choice of each dimension.

    mask: form of info["action_mask"]: "right", as a "row", or from step 3 on "missing", "empty", or of another "size".
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, sizes: tuple[int, ...] = (4,), mask: str = "right") -> None:
        self.sizes, self.mask = tuple(sizes), mask
        self.action_space = spaces.Discrete(sizes[0]) if len(sizes) == 1 else spaces.MultiDiscrete(list(sizes))

    def _look(self) -> tuple[np.ndarray, dict[str, Any]]:
        self.allowed = [self.np_random.integers(0, 2, size).astype(np.int8) for size in self.sizes]
        for allowed in self.allowed:
            allowed[self.np_random.integers(len(allowed))] = 1
        shown: Any = tuple(self.allowed) if len(self.sizes) > 1 else self.allowed[0]
        if self.mask == "row":
            shown = np.concatenate(self.allowed)
        if self.t >= 3 and self.mask == "missing":
            return np.full(3, self.t / 10), {}
        if self.t >= 3 and self.mask == "empty":
            shown = [*self.allowed[:-1], 0 * self.allowed[-1]]
        if self.t >= 3 and self.mask == "size":
            shown = np.ones(3)
        return np.full(3, self.t / 10), {"action_mask": shown}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._look()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        taken = np.reshape(action, -1)
        chosen = list(zip(taken.tolist(), self.allowed, strict=True))
        assert all(allowed[k] for k, allowed in chosen), "an action was chosen that the mask forbids"
        self.t += 1
        best = sum(k == np.flatnonzero(allowed)[-1] for k, allowed in chosen)
        observation, info = self._look()
        ended = self.t == 6
        return observation, float(best), False, ended, {} if ended else info


class Shaped(gymnasium.Env[Any, Any]):
    """Observes samples of a space that (episode seed, step) decide; 6 steps an episode, ended by truncation.

    wrong: what it observes instead from step 3 on.
    """

    def __init__(self, space: str, action: str = "discrete", wrong: Any = None) -> None:
        self.observation_space = SPACES[space]
        self.action_space = spaces.Discrete(3) if action == "discrete" else spaces.Box(-1, 1, (2,))
        self.wrong = wrong

    @staticmethod
    def observation(space: str, seed: int, step: int) -> Any:
        SPACES[space].seed(seed % 10_000 * 10 + step)
        return SPACES[space].sample()

    def _observe(self) -> Any:
        self.observation_space.seed(self.seed % 10_000 * 10 + self.t)
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        assert seed is not None
        self.seed, self.t = seed, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        observation = self._observe() if self.wrong is None or self.t < 3 else np.array(self.wrong)
        return observation, float(np.sum(action)) + self.t / 10, False, self.t == 6, {}


gymnasium.register("Masked-v0", entry_point=Masked)
gymnasium.register("Echo-v0", entry_point=Echo)
