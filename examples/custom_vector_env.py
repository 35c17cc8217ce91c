"""A vector environment of your own: the task of custom_env.py for many environments at once, in NumPy.

Each worker makes one for its environments (`--env-backend vector`). To make the weights independent of the number of
workers, an environment must depend only on its own seed and actions. So each one has a generator of its own, and
`reset` restarts only the environments of options["reset_mask"], with one seed for each.
"""

import sys
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="custom_vector_env:Recall", env_backend="vector", env_kwargs={"length": 8}, num_envs=64, learning_rate=3e-3,
    minibatches=8, total_steps=200_000,
)  # fmt: skip


class Recall(VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """`num_envs` corridors of `length` steps, each with a signal at its start. See custom_env.py."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012  # shmppo resets environments

    def __init__(self, num_envs: int, length: int = 8) -> None:
        self.num_envs, self.length = num_envs, length
        self.single_observation_space = spaces.Dict({"left": spaces.Box(0, 1, (1,)), "signal": spaces.Discrete(5)})
        self.single_action_space = spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.t, self.signal = np.zeros((2, num_envs), np.int64)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        mask = options["reset_mask"] if options else np.ones(self.num_envs, bool)
        for i in np.flatnonzero(mask):
            self.signal[i] = np.random.default_rng(seed[i] if isinstance(seed, list) else seed).integers(4)
        self.t[mask] = 0
        return self._observe(), {}

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.t += 1
        ended = self.t == self.length
        return self._observe(), 1.0 * (ended & (actions == self.signal)), ended, np.zeros_like(ended), {}

    def _observe(self) -> dict[str, Any]:
        left = (1 - self.t[:, None] / self.length).astype(np.float32)
        return {"left": left, "signal": np.where(self.t == 0, self.signal, 4)}


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
