"""A curriculum: the corridor of `custom_env.py` becomes longer when the policy succeeds.

`--env-schedule curriculum:lengths` calls `lengths(iteration, metrics, options)` once per iteration. Episodes that begin
in this iteration get its result as the options of `reset`. Evaluation uses the options of the checkpoint's iteration.
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


def lengths(iteration: int, metrics: dict[str, float], options: dict[str, int] | None) -> dict[str, int]:
    """Return the length of the corridor: one step more than before if more than 80 % of the episodes succeed.

    Args:
        iteration: counted from 1.
        metrics: those of the iteration before.
        options: those of the iteration before.
    """
    length = FIRST_LENGTH if options is None else options["length"]
    return {"length": min(length + (metrics.get("info/is_success", 0.0) > 0.8), LAST_LENGTH)}


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
