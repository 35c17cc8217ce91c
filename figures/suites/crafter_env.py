"""Crafter with Gymnasium's interface: `--env figures.suites.crafter_env:make`.

Crafter keeps objects in sets, whose order depends on memory addresses. With `--env-kwargs ordered=true`, the objects
have the order in which they were added, so the environment is a function of its seed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class OrderedSet(dict[Any, None]):
    """A set in the order of insertion, with the methods that Crafter calls."""

    def add(self, item: Any) -> None:
        """Add an item, if it is missing."""
        self.setdefault(item)

    def remove(self, item: Any) -> None:
        """Remove an item."""
        del self[item]


class CrafterEnv(gymnasium.Env[np.ndarray, Any]):
    """Makes a Crafter world from the seed of each reset. An episode ends at death, or is truncated after its limit."""

    def __init__(self, length: int = 10_000, *, ordered: bool = False) -> None:
        """Set the limit of an episode, in steps, and whether the objects have an order."""
        import crafter

        self._crafter, self._length, self._ordered, self._steps = crafter, length, ordered, 0
        self._world = crafter.Env(seed=0, length=None)
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self._world.action_names))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._world = self._crafter.Env(seed=int(self.np_random.integers(2**31)), length=None)
        if self._ordered:
            _order_objects(self._world._world)
        return self._world.reset(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, _ = self._world.step(int(action))
        self._steps += 1
        return observation, float(reward), bool(terminated), self._steps >= self._length, {}


def _order_objects(world: Any) -> None:
    """Replace the sets of objects that the next reset of a world makes by ordered ones."""
    original = world.reset

    def reset(seed: int | None = None) -> None:
        original(seed)
        world._chunks = defaultdict(OrderedSet)

    world.reset = reset


def make(length: int = 10_000, *, ordered: bool = False) -> gymnasium.Env[np.ndarray, Any]:
    """Make the environment."""
    return CrafterEnv(length, ordered=ordered)
