"""Wrappers that make environments functions of their seeds: `--wrappers figures.suites.wrappers:NewWorld`."""

from __future__ import annotations

from typing import Any

import gymnasium

Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]


class NewWorld(Wrapper):
    """Makes a new Box2D world at each reset of BipedalWalker, which keeps its world otherwise."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)


class SeededGoals(Wrapper):
    """Seeds the generators of Meta-World at each reset, which ignores its seed otherwise."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        robot: Any = self.unwrapped
        if seed is not None:
            robot.seed(seed)
        return self.env.reset(seed=seed, options=options)
