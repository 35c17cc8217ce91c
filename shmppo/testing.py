"""An environment whose steps take a drawn time without using a processor: `--env shmppo.testing:Latency`.

For measuring what lock-step itself costs with more workers than cores, and for showing stragglers.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

PARETO_SHAPE = 1.5  # a heavy tail: finite mean, infinite variance


class Latency(gymnasium.Env[np.ndarray, np.int64]):
    """Each step sleeps; observes (episode seed, step) scaled down; truncates after `length` steps.

    The times of an episode follow from its seed.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self, mean: float = 0.01, tail: Literal["none", "exponential", "pareto"] = "none", length: int = 1000
    ) -> None:
        """mean: of a step's time, seconds; tail: none (always the mean), exponential, or pareto (shape 1.5)."""
        self.mean, self.tail, self.length = mean, tail, length
        self._drawn = np.random.default_rng(0)
        self._start = 0.0
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._drawn = np.random.default_rng(seed)
        self._start = float(self._drawn.random())
        self._t = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.seconds())
        self._t += 1
        return self._observation(), 1.0, False, self._t == self.length, {}

    def seconds(self) -> float:
        """Draw the time of a step."""
        if self.tail == "exponential":
            return float(self._drawn.exponential(self.mean))
        if self.tail == "pareto":  # (1 + Lomax) has the mean a / (a − 1)
            return self.mean * (1 - 1 / PARETO_SHAPE) * (1 + float(self._drawn.pareto(PARETO_SHAPE)))
        return self.mean

    def _observation(self) -> np.ndarray:
        return np.array([self._start, self._t / self.length], np.float32)
