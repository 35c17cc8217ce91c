"""A custom environment: remember which of four signals was shown first, and repeat it at the end of a corridor.

The environment needs no registration. `--env custom_env:Recall` names the class, and `--env-kwargs` sets its arguments.
Reaches a return of 0.95 within 100,000 steps, in about 10 seconds on 2 cores. Without memory (`--core none`), it
stays at a return of 0.25.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(env="custom_env:Recall", env_kwargs={"length": 8}, learning_rate=3e-3, total_steps=100_000)


class Recall(gymnasium.Env[dict[str, Any], np.int64]):
    """A corridor of `length` steps with a signal at its start.

    The observation is the signal (0 … 3 in the first step, then 4 for no signal) and the remaining fraction of the way.
    The reward is 1 if the last action equals the signal, otherwise 0. `info` says whether it does.
    """

    observation_space = spaces.Dict({"left": spaces.Box(0, 1, (1,)), "signal": spaces.Discrete(5)})
    action_space = spaces.Discrete(4)

    def __init__(self, length: int = 8) -> None:
        self.length = length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.signal = 0, int(self.np_random.integers(4))
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.t += 1
        ended = self.t == self.length
        success = bool(ended and action == self.signal)
        return self._observe(), float(success), ended, False, {"is_success": success}

    def _observe(self) -> dict[str, Any]:
        left = np.array([1 - self.t / self.length], np.float32)
        return {"left": left, "signal": self.signal if self.t == 0 else 4}


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
