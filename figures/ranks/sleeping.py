"""CartPole whose steps sleep, so that several ranks can share a core: `--env figures.ranks.sleeping:make`."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium

STRAGGLER_FACTOR = 5


class SleepingCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps at each step."""

    def __init__(self, seconds: float, straggler: bool) -> None:
        """Wrap CartPole-v1. seconds: of a step. straggler: the last rank sleeps STRAGGLER_FACTOR times as long."""
        super().__init__(gymnasium.make("CartPole-v1"))
        last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        self._seconds = seconds * (STRAGGLER_FACTOR if straggler and last else 1)

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)


def make(seconds: float = 0.002, straggler: bool = False) -> gymnasium.Env[Any, Any]:
    """Make the environment."""
    return SleepingCartPole(seconds, straggler)
