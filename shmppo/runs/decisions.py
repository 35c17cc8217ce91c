"""What is decided from metrics: the best checkpoint (--best-by), the end of the run (--stop-when), and the curriculum.

Decisions read only metrics that depend on nothing but the configuration, so crashes, signals, --stop-at-iteration, and
resumes do not change them. A run that a callback has stopped has one more comparison for --best-by, and one that was
made longer also has those of its first length.
"""

from __future__ import annotations

import math
import re

from shmppo.config.checks import nearest, require
from shmppo.config.train_config import TrainConfig
from shmppo.envs.schedule import load_schedule
from shmppo.errors import ConfigError
from shmppo.loggers.metrics import DECISIVE, EVALUATION_GLOSSARY, columns
from shmppo.loggers.trackers import Row

_COMPARISONS = 20  # of a metric of training in a run, for --best-by; the end of the run may be another one
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(rf"\s*([^\s<>=:]+)\s*(?:(>=|<=)\s*({_NUMBER})|(:)\s*([1-9]\d*))\s*")


class Decisions:
    """The decisions of one run, and the metrics from which they are made.

    Attributes:
        metrics: of the last iteration and of the last evaluation.
        value: value of the metric of --best-by for the current weights. NaN if it is unknown, or if this process has
            saved them as the best checkpoint.
        compared: whether the current weights may become the best checkpoint.
        best_value: its highest value so far.
        mean_return, best_return: the return for the current weights and for the best checkpoint, which decides about
            equal values. −∞ if it is unknown.
        progress: for the metric of each condition METRIC:N of --stop-when, the highest value so far and the number of
            values since.
        best_metric: the metric of --best-by.
        needed: the metrics of --best-by and --stop-when.
        schedule: of --env-schedule; None without this option.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Parse the options. Raises ConfigError if one is invalid."""
        self.metrics: Row = {}
        self.value, self.best_value = math.nan, -math.inf
        self.mean_return = self.best_return = -math.inf
        self.progress: dict[str, list[float]] = {}
        self.compared = False
        self.best_metric = config.best_metric
        self._iterations = config.iterations
        if config.best_by != "return":
            _check(config, "--best-by", self.best_metric)
        self.schedule = load_schedule(config)
        self._conditions: list[tuple[str, str, str, float]] = []
        for text in config.stop_when:
            found = _CONDITION.fullmatch(text)
            if found is None:
                advice = "write METRIC>=VALUE or METRIC<=VALUE with a number as VALUE, or METRIC:N with N values"
                raise ConfigError(f"--stop-when {text!r} has another form; {advice}")
            metric, comparison, number = (group for group in found.groups() if group is not None)
            _check(config, "--stop-when", metric)
            self._conditions.append((text, metric, comparison, float(number)))
        self.needed = {self.best_metric, *(metric for _, metric, _, _ in self._conditions)}

    def take(self, row: Row) -> None:
        """Take over the metrics of a finished iteration, with those of its evaluation if there was one."""
        new = {name: row[name] for name in row if name in DECISIVE or name.startswith(("info/", "eval/info/"))}
        self.metrics = {name: value for name, value in self.metrics.items() if name.startswith("eval/")} | new
        # If each saved checkpoint were compared, the best one would depend on stops and on the clock.
        on_grid = row["iteration"] % -(-self._iterations // _COMPARISONS) == 0
        self.compared = on_grid or self.best_metric.startswith("eval/")
        self.look_at(new)
        for metric in {metric for _, metric, comparison, _ in self._conditions if comparison == ":"}:
            value = new.get(metric, math.nan)
            if value == value:
                best, since = self.progress.get(metric, (-math.inf, 0))
                self.progress[metric] = [value, 0] if value > best else [best, since + 1]

    def look_at(self, row: Row) -> None:
        """Take the value of the metric of --best-by and the return from a row, if it has them."""
        self.value = row.get(self.best_metric, math.nan)
        name = "eval/return" if self.best_metric.startswith("eval/") else "return_mean_100"
        known = row.get(name, math.nan)
        self.mean_return = known if known == known else -math.inf

    def save_best(self) -> None:
        """Note that the current weights are saved as the best checkpoint."""
        self.best_value, self.best_return, self.value = self.value, self.mean_return, math.nan

    @property
    def need_evaluations(self) -> bool:
        """Whether a decision reads metrics of evaluations. That of a schedule may."""
        return self.schedule is not None or any(metric.startswith("eval/") for metric in self.needed)

    @property
    def better(self) -> bool:
        """Whether the current weights are at least as good as those of the best checkpoint, and not saved as such."""
        return self.compared and (self.value, self.mean_return) >= (self.best_value, self.best_return)

    def reason_to_stop(self, row: Row) -> str | None:
        """Return the first condition of --stop-when that holds, or None. row: as for `take`."""
        for text, metric, comparison, limit in self._conditions:
            value = row.get(metric, math.nan)
            if comparison == ":":
                holds = self.progress.get(metric, (0, 0))[1] >= limit
            else:
                holds = value >= limit if comparison == ">=" else value <= limit
            if holds:
                return text
        return None


def _check(config: TrainConfig, flag: str, metric: str) -> None:
    """Raise ConfigError if nothing can be decided from a metric."""
    info = [key.metric for key in config.reported_info]
    own = {*columns(config), *EVALUATION_GLOSSARY}
    decisive = [name for name in DECISIVE if name in own]
    known = [*decisive, *info, *(f"eval/{name}" for name in info)]
    advice = "use a column of metrics.csv or eval.csv, no duration; for info/KEY, add --info-keys KEY"
    require(metric in known, f"{flag} {metric} is not a metric of this run{nearest(metric, known)}; {advice}")
    require(
        config.eval_every is not None or not metric.startswith("eval/"),
        f"{flag} {metric} needs evaluations; add --eval-every",
    )
