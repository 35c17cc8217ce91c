"""EnvPool's version of HalfCheetah-v5 as a vector environment, for the task A-envpool of `measure.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import envpool
import gymnasium


class EnvPool(gymnasium.vector.VectorEnv):
    """One pool. EnvPool resets an environment with the step after the end of its episode."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.pool = self.make([0] * num_envs)
        self.single_observation_space = self.pool.observation_space
        self.single_action_space = self.pool.action_space

    def make(self, seeds: Sequence[int]) -> Any:
        """Make the pool. EnvPool seeds an environment only when it makes it."""
        return envpool.make(
            "HalfCheetah-v5", env_type="gymnasium", num_envs=self.num_envs, num_threads=1, seed=list(seeds)
        )

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, with one seed each. shmppo sees that single ones cannot be reset."""
        if options is not None:
            raise ValueError("EnvPool seeds an environment only when it makes it")
        if seed is not None:
            self.pool = self.make(seed)
        return self.pool.reset()

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        return self.pool.step(actions)
