"""What is decided from metrics: the best checkpoint (--best-by), the end of the run (--stop-when), and the curriculum.

Decisions read only metrics that depend on nothing but the configuration, so crashes and resumes do not change them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from shmppo.config.checks import nearest, require
from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import DECISIVE
from shmppo.loggers.trackers import Row

_CONDITION = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=)\s*(\S+)\s*")


def decisive(row: Mapping[str, float]) -> Row:
    """Return the metrics from which decisions may be made."""
    return {name: value for name, value in row.items() if name in DECISIVE or name.startswith(("info/", "eval/info/"))}


class Decisions:
    """The decisions of one run.

    Attributes:
        best_metric: the metric whose largest value belongs to the best checkpoint.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Parse the options. Raises ConfigError if one is invalid."""
        self.best_metric = "return_mean_100" if config.best_by == "return" else config.best_by
        _check(config, "--best-by", self.best_metric)
        self._conditions: list[tuple[str, str, str, float]] = []
        for text in config.stop_when:
            where, found = f"--stop-when {text!r}", _CONDITION.fullmatch(text)
            require(found is not None, f"{where} is not of the form METRIC>=VALUE or METRIC<=VALUE")
            assert found is not None
            metric, comparison, number = found.groups()
            try:
                limit = float(number)
            except ValueError:
                limit = math.nan
            require(not math.isnan(limit), f"{where} ends with {number}; it must be a number")
            _check(config, "--stop-when", metric)
            self._conditions.append((text, metric, comparison, limit))

    def best_value(self, metrics: Mapping[str, float]) -> float:
        """Return the value of `best_metric`. NaN if it is not among the metrics."""
        return metrics.get(self.best_metric, math.nan)

    def reason_to_stop(self, metrics: Mapping[str, float]) -> str | None:
        """Return the first condition that holds, or None."""
        for text, metric, comparison, limit in self._conditions:
            value = metrics.get(metric, math.nan)
            if value >= limit if comparison == ">=" else value <= limit:
                return text
        return None


def _check(config: TrainConfig, flag: str, metric: str) -> None:
    """Raise ConfigError if nothing can be decided from a metric."""
    known = metric.startswith(("info/", "eval/info/")) or metric in DECISIVE
    hint = nearest(metric, DECISIVE)
    require(known, f"{flag} {metric} is not a metric of training or evaluation without times{hint}")
    require(
        config.eval_every is not None or not metric.startswith("eval/"),
        f"{flag} {metric} needs evaluations; add --eval-every",
    )
