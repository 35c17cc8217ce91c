"""Crafter with Gymnasium's interface: `--env figures.suites.crafter_env:make`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CrafterEnv(gymnasium.Env[np.ndarray, Any]):
    """Makes a Crafter world from the seed of each reset. An episode ends at death, or is truncated after its limit."""

    def __init__(self, length: int = 10_000) -> None:
        """Set the limit of an episode, in steps."""
        import crafter

        self._crafter, self._length, self._steps = crafter, length, 0
        self._world = crafter.Env(seed=0, length=None)
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self._world.action_names))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._world = self._crafter.Env(seed=int(self.np_random.integers(2**31)), length=None)
        return self._world.reset(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, _ = self._world.step(int(action))
        self._steps += 1
        return observation, float(reward), bool(terminated), self._steps >= self._length, {}


def make(length: int = 10_000) -> gymnasium.Env[np.ndarray, Any]:
    """Make the environment."""
    return CrafterEnv(length)
