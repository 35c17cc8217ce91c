"""Options of `reset` that change with the iteration (--env-schedule), for a curriculum."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from shmppo.config.checks import shown
from shmppo.config.plugins import load_object
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

Schedule = Callable[[int], dict[str, Any]]
"""Returns the options for the episodes that begin in an iteration, counted from 1."""

log = logging.getLogger(__name__)


def load_schedule(config: TrainConfig) -> Schedule | None:
    """Return the schedule of a run, or None if it has none.

    Raises:
        ConfigError: if the configuration does not name a function. Later, the schedule raises it if the function raises
            or returns something other than a dict.
    """
    if config.env_schedule is None:
        return None
    where = f"--env-schedule {config.env_schedule}"
    function = load_object(config.env_schedule, "--env-schedule")

    def options(iteration: int) -> dict[str, Any]:
        try:
            returned = function(iteration)
        except FAILURES as error:
            reraise_ctrl_c(error)
            raise ConfigError(
                f"{where} raised {describe_error(error)} for iteration {iteration}; correct it",
                details=user_traceback(error),
            ) from error
        if not isinstance(returned, dict):
            raise ConfigError(
                f"{where} returned {type(returned).__name__} for iteration {iteration}; return a dict of options"
            )
        return copy.deepcopy(returned)  # an environment that changes its options must not change those of others

    return options


class ScheduleLog:
    """Logs the options whenever they change."""

    def __init__(self, schedule: Schedule | None) -> None:
        self._schedule, self._last = schedule, ""

    def log(self, iteration: int) -> None:
        """Call this before each iteration, counted from 1."""
        if self._schedule is not None and (text := shown(self._schedule(iteration))) != self._last:
            log.info("episodes that begin in iteration %d or later get the options %s", iteration, text)
            self._last = text
