"""One training run of a trial up to a rung, in a process of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from shmppo.config.train_config import TrainConfig
from shmppo.storage.run_directory import EVALUATIONS
from shmppo.tools.run_process import RunProcess


@dataclass(frozen=True)
class RunResult:
    """The result of a run at a rung."""

    value: float
    """The objective. NaN after a failure."""
    failure: str = ""
    """Why the run has failed; "" if it has not."""
    weights_hash: str = ""


class TrialRun(RunProcess):
    """A run of a trial with one seed. It is started once per rung.

    Attributes:
        trial: number of the trial, or its name.
        iterations: number of iterations at the rung.
    """

    def __init__(
        self, trial: int | str, config: TrainConfig, iterations: int, run_dir: Path, *, objective: str
    ) -> None:
        """Describe the run.

        Args:
            trial: number of the trial, or its name.
            config: of the run, with its seed.
            iterations: number of iterations after which it pauses.
            run_dir: its directory.
            objective: value of --objective.

        Raises:
            ConfigError: if the directory has a run with another configuration.
        """
        super().__init__(config, run_dir)
        self.trial, self.iterations = trial, iterations
        self._objective = objective

    def start(self, cores: list[int], *flags: str) -> None:
        """Start or continue the run up to the rung. See `RunProcess.start`."""
        super().start(cores, "--stop-at-iteration", str(self.iterations), *flags)

    def result(self) -> RunResult | None:
        """Return the result at the rung; None if the run has to be started or continued for it."""
        if self.failure:
            return RunResult(math.nan, self.failure)
        rows = self.rows()[: self.iterations]
        if len(rows) < self.iterations:
            return None
        last = rows[-1]
        if self._objective.startswith("eval/"):
            rows = [row for row in self.rows(EVALUATIONS) if int(row["iteration"]) <= self.iterations][-1:]
            if not rows or int(rows[0]["iteration"]) < self.iterations:
                return None
        column = "return_mean_100" if self._objective in ("last", "mean") else self._objective
        values = [value for row in rows if math.isfinite(value := float(row.get(column, "nan")))]
        if not values:
            what = "" if column == "return_mean_100" else f" with {column}"
            return RunResult(math.nan, f"no episode{what} has ended in {int(last['env_steps']):,} steps")
        value = fmean(values) if self._objective == "mean" else values[-1]
        return RunResult(value, weights_hash=last["weights_hash"])
