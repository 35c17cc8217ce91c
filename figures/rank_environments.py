"""CartPole with its velocities hidden whose steps take a while, and on the last of several ranks five times as long."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium

SLOWER = 5


class SleepyCartPole(gymnasium.Wrapper):
    """Sleeps `seconds` at each step without using a processor; `straggler`: the last rank sleeps five times as long."""

    def __init__(self, seconds: float = 0.001, straggler: bool = False) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        self.seconds = seconds * (SLOWER if straggler and last else 1)

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def make(seconds: float = 0.001, straggler: bool = False) -> gymnasium.Env:
    return SleepyCartPole(seconds, straggler)
