"""A curriculum: the corridor of `custom_env.py` becomes longer while the policy learns.

`--env-schedule curriculum:lengths` calls `lengths(iteration)`. Episodes that begin in an iteration get its result as
the options of `reset`. Evaluation uses the options of the checkpoint's iteration.
"""

import sys
from typing import Any

from custom_env import Recall

from shmppo import TrainConfig
from shmppo.train import main

FIRST_LENGTH, LAST_LENGTH = 4, 24
CONFIG = TrainConfig(
    env="curriculum:GrowingRecall", env_schedule="curriculum:lengths", learning_rate=3e-3, total_steps=200_000
)


class GrowingRecall(Recall):
    """The corridor, whose length is an option of `reset`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.length = (options or {"length": LAST_LENGTH})["length"]
        return super().reset(seed=seed)


def lengths(iteration: int) -> dict[str, int]:
    """Return the length of the corridor: it grows by one step in every second iteration, up to LAST_LENGTH."""
    return {"length": min(FIRST_LENGTH + iteration // 2, LAST_LENGTH)}


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
