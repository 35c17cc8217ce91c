"""Options of `reset` that change while training (--env-schedule), for a curriculum.

Only the learner calls the function. Workers read its result from the shared memory.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from shmppo.config.checks import require, shown
from shmppo.config.option import MAX_OPTION_BYTES
from shmppo.config.plugins import load_object
from shmppo.config.train_config import TrainConfig
from shmppo.utils.user_code import accepts, as_config_error

Options = dict[str, Any]
"""Options of `reset`: JSON values by name."""


class EnvSchedule:
    """The function of --env-schedule."""

    def __init__(self, config: TrainConfig) -> None:
        """Import the function. Raises ConfigError if there is none."""
        self._where = f"--env-schedule {config.env_schedule}"
        self._function = load_object(str(config.env_schedule), "--env-schedule")
        self._arguments = max(count for count in (1, 2, 3) if count == 1 or accepts(self._function, *range(count)))

    def __call__(self, iteration: int, metrics: Mapping[str, float], before: Options | None = None) -> Options:
        """Return the options of the episodes that begin in an iteration.

        Args:
            iteration: counted from 1.
            metrics: of the iteration before and of the last evaluation, by name. Empty in iteration 1.
            before: the options of the iteration before. None in iteration 1.

        Raises:
            ConfigError: if the function raises, or if it returns something other than a dict of JSON values.
        """
        with as_config_error(self._where, f" for iteration {iteration}; it must return a dict of JSON values"):
            text = json.dumps(self._function(*(iteration, dict(metrics), copy.deepcopy(before))[: self._arguments]))
        returned: Options = json.loads(text)
        require(
            isinstance(returned, dict) and len(text) <= MAX_OPTION_BYTES,
            f"{self._where} returned {shown(returned)} for iteration {iteration}; it must return a dict with at most "
            f"{MAX_OPTION_BYTES} bytes of JSON",
        )
        return returned


def load_schedule(config: TrainConfig) -> EnvSchedule | None:
    """Return the schedule of a run, or None if it has none. Raises ConfigError if there is no such function."""
    return None if config.env_schedule is None else EnvSchedule(config)


def write_options(options: Options, target: np.ndarray) -> None:
    """Write options as JSON text. target: uint8 [MAX_OPTION_BYTES]."""
    text = json.dumps(options).encode()
    target[: len(text)] = np.frombuffer(text, np.uint8)
    target[len(text) :] = 0


def read_options(source: np.ndarray) -> Options | None:
    """Read what `write_options` wrote. Return None if the run has no schedule, and so no bytes."""
    options: Options | None = json.loads(source.tobytes().rstrip(b"\0")) if source.size else None
    return options
