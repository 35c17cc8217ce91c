"""Schedules for --env-schedule, and an environment whose episodes depend on their options."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from environments import Counter


class Leveled(Counter):
    """Observes its level, and ends after 5 steps and as many as its level says.

    raises: whether the 9th step of an episode raises. highest: reset raises for a higher level. pops: whether reset
    changes its options.
    """

    def __init__(self, raises: bool = False, highest: int = 99, pops: bool = False) -> None:
        super().__init__()
        self.raises, self.highest, self.pops = raises, highest, pops

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        options = {"level": 0} if options is None else options
        level = options.pop("level") if self.pops else options["level"]
        if level > self.highest:
            raise ValueError(f"level {level}")
        self.length = 5 + level
        observation, info = super().reset(seed=seed)
        observation[1] = level
        return observation, info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        result = super().step(action)
        if self.raises and self.t == 9:
            raise ValueError(f"too long: {self.length}")
        return result


class Scored(Leveled):
    """Rewards the action 1. An episode succeeds with as many of them as it needs, a random number."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        first = super().reset(seed=seed, options=options)
        self.ones, self.needed = 0, self.np_random.integers(1, self.length + 1)
        return first

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, _, terminated, truncated, _ = super().step(action)
        self.ones += action
        return observation, float(action), terminated, truncated, {"is_success": self.ones >= self.needed}


LEVELS = [{"level": iteration} for iteration in range(10)]


def shared(iteration: int) -> dict[str, int]:
    return LEVELS[iteration]


def levels(iteration: int) -> dict[str, int]:
    return {"level": iteration}


def random_level(iteration: int) -> dict[str, int]:
    return {"level": secrets.randbelow(90)}


def raises(iteration: int) -> dict[str, int]:
    raise ValueError("no level")


def number(iteration: int) -> int:
    return iteration


def by_success(iteration: int, metrics: dict[str, float], options: dict[str, int] | None) -> dict[str, int]:
    """A higher level after each iteration with enough success in training and in the last evaluation."""
    level = options.pop("level") if options else 1  # both arguments are copies
    enough = metrics.pop("info/is_success", 0) > 0.6 and metrics.pop("eval/info/is_success", 0) > 0.7
    return {"level": level + 1 if enough else level}


def rising(iteration: int, metrics: dict[str, float], options: dict[str, int] | None) -> dict[str, int]:
    return {"level": options["level"] + 1 if options else 1}


def not_json(iteration: int) -> dict[str, object]:
    return {"level": object()}


def too_long(iteration: int) -> dict[str, str]:
    return {"level": "x" * 70_000}
