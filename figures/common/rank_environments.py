"""CartPole whose steps sleep, so that several ranks can share a core."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium

STRAGGLER_FACTOR = 5


class SleepingCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps at each step."""

    def __init__(self, seconds: float = 0.001, straggler: bool = False) -> None:
        """Wrap CartPole-v1.

        Args:
            seconds: to sleep per step.
            straggler: whether the last rank sleeps `STRAGGLER_FACTOR` times as long.
        """
        super().__init__(gymnasium.make("CartPole-v1"))
        last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        self.seconds = seconds * (STRAGGLER_FACTOR if straggler and last else 1)

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def make(seconds: float = 0.001, straggler: bool = False) -> gymnasium.Env[Any, Any]:
    """Make the environment: `--env figures.common.rank_environments:make`."""
    return SleepingCartPole(seconds, straggler)
