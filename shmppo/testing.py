"""An environment for tests and benchmarks whose steps sleep for a random time: `--env shmppo.testing:Latency`.

It uses almost no processor time. Therefore it shows the cost of synchronization with more workers than cores, and the
effect of stragglers.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

PARETO_SHAPE = 1.5  # finite mean, infinite variance


class Latency(gymnasium.Env[np.ndarray, np.int64]):
    """An environment whose steps sleep and give a reward of 1. An episode is truncated after `length` steps.

    The observation has two numbers in 0 … 1: a random number that the reset draws, and the step divided by `length`.
    The step times of an episode depend only on its seed.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self, mean: float = 0.01, tail: Literal["none", "exponential", "pareto"] = "none", length: int = 1000
    ) -> None:
        """Set the distribution of step times.

        Args:
            mean: mean time of a step, in seconds.
            tail: distribution of the times: none (always the mean), exponential, or pareto (shape 1.5).
            length: steps per episode.
        """
        self.mean, self.tail, self.length = mean, tail, length
        self._rng = np.random.default_rng(0)
        self._start = 0.0
        self._t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._start = float(self._rng.random())
        self._t = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds())
        self._t += 1
        return self._observation(), 1.0, False, self._t == self.length, {}

    def seconds(self) -> float:
        """Draw the time of one step, in seconds."""
        if self.tail == "exponential":
            return float(self._rng.exponential(self.mean))
        if self.tail == "pareto":  # numpy draws a Lomax variable; 1 + it has mean a / (a − 1)
            return self.mean * (1 - 1 / PARETO_SHAPE) * (1 + float(self._rng.pareto(PARETO_SHAPE)))
        return self.mean

    def _observation(self) -> np.ndarray:
        return np.array([self._start, self._t / self.length], np.float32)
