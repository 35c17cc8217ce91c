"""What a display shows of a run: the latest metrics, and the progress of the iteration that is running."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shmppo.config.info_keys import PREFIX
from shmppo.config.train_config import TrainConfig
from shmppo.errors import printable
from shmppo.loggers.text import number
from shmppo.utils.files import short_path
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.signals import StopRequest

if TYPE_CHECKING:
    from shmppo.parallel.shared_buffers import Control

HISTORY = 500
"""Iterations that the sparkline of returns covers."""
QUIET_SECONDS = 10
"""After so many seconds without progress, the display names the worker."""


@dataclass
class RunStatus:
    """The state of a run for displays. The learner writes it; displays read it at any time."""

    config: TrainConfig
    run_dir: Path
    stop: StopRequest
    control: Control
    """Shared counters of the workers' progress."""
    iteration: int = 0
    """Number of finished iterations."""
    timer: PhaseTimer | None = None
    """The timer of the learner. None: not all processes have started."""
    row: dict[str, float] | None = None
    """The latest row of metrics.csv."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """The latest row of eval.csv. Empty before the first evaluation."""
    worker_seconds: Sequence[float] = ()
    """[W], seconds that each worker took to sample its part of the last rollout."""
    memory: int = 0
    """Bytes used by all processes. 0: unknown."""
    notes: list[str] = field(default_factory=list)
    """Sentences about the run that displays show as warnings."""
    ended: bool = False
    """Whether no further iteration follows."""
    history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Mean returns of the latest iterations."""
    _since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._progress = self.control.progress.copy()
        self._changed = np.full(len(self._progress), time.monotonic())  # [W], when progress was seen last

    def add(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int) -> None:
        """Record a finished iteration."""
        self.history.append(row["return_mean_100"])
        self.row, self.worker_seconds, self.memory = row, worker_seconds, memory
        self.iteration, self._since = int(row["iteration"]), time.monotonic()

    @property
    def sampled(self) -> int:
        """Steps of the running iteration that all environments of this rank have begun."""
        steps = self.control.progress[:, 0] - self.iteration * self.config.rollout_steps
        return int(steps.clip(0, self.config.rollout_steps).mean() * self.config.num_envs)

    @property
    def activity(self) -> str:
        """What the run does at the moment."""
        config = self.config
        if self.timer is None:
            if not config.num_workers:
                return "creating the environments"
            return f"starting {count(config.num_workers, 'worker')} and their environments"
        if self.timer.phase == "evaluation":
            return f"evaluating the weights in {count(config.eval_episodes, 'episode')}"
        if self.iteration >= config.last_iteration:
            return "finished"
        if int(self.control.finished_rollouts.min()) > self.iteration:
            return "updating the weights"
        return f"sampling {self.sampled:,} of {config.rank_steps:,} steps{self._delay}"

    @property
    def _delay(self) -> str:
        """The end of the sentence that names the worker without progress, if there is one."""
        now, progress = time.monotonic(), self.control.progress.copy()
        self._changed[(progress != self._progress).any(axis=1)] = now
        self._progress = progress
        samples = progress[:, 0] < (self.iteration + 1) * self.config.rollout_steps
        seconds = np.where(samples, now - self._changed, 0.0)
        if seconds.max() <= QUIET_SECONDS:
            return ""
        return f", worker {seconds.argmax()} has made no progress for {seconds.max():.0f} s"

    @property
    def stopping(self) -> str | None:
        """A sentence if the run stops or has stopped before its last iteration, else None."""
        last = self.config.last_iteration
        if self.iteration >= last:
            return None
        if self.ended:
            return f"stopped after iteration {self.iteration:,} of {last:,}{because(self.stop.reason)}"
        if self.stop.signal is None:
            return None
        again = " (press Ctrl-C again to stop at once)" if self.stop.signal == signal.SIGINT else ""
        return f"stopping after this iteration{again}"

    @property
    def steps(self) -> int:
        """Environment steps so far, including those of the running iteration on all ranks."""
        done = int(self.row["env_steps"]) if self.row else self.iteration * self.config.batch_steps
        return done + self.sampled * self.config.ranks

    @property
    def total_steps(self) -> int:
        """Environment steps at the end of the run."""
        return self.config.last_iteration * self.config.batch_steps

    @property
    def elapsed(self) -> float:
        """Seconds of training so far. Before the first iteration ends, seconds since the start."""
        return (self.row["wall_seconds"] if self.row else 0.0) + time.monotonic() - self._since

    @property
    def remaining(self) -> float | None:
        """Estimated seconds until the end of the run. None: unknown."""
        if self.row is None:
            return None
        left = (self.config.last_iteration - self.iteration) * self.row["wall_seconds"] / self.iteration
        return max(left - (time.monotonic() - self._since), 0.0)

    @property
    def mean_return(self) -> str:
        """The mean return of the last 100 episodes."""
        if self.row is None or not self.row["episodes"]:
            return "no episode finished yet"
        return number(self.row["return_mean_100"])

    @property
    def info(self) -> dict[str, str]:
        """Three means of `info` (--info-keys), by key: the success if there is one, and the first others."""
        row = self.row or {}
        means = {name.removeprefix(PREFIX): value for name, value in row.items() if name.startswith(PREFIX)}
        return {name: number(means[name]) for name in sorted(means, key=_not_success)[:3]}

    @property
    def title(self) -> str:
        """Environment, its hidden observations, and numbers of environments, workers, and ranks."""
        config = self.config
        ranks = f"{config.ranks} ranks of " if config.ranks > 1 else ""
        workers = count(config.num_workers, "worker") if config.num_workers else "no workers"
        hidden = f", observations {', '.join(map(str, config.hidden_indices))} hidden" * bool(config.hidden_indices)
        return f"{printable(config.env_id)}{hidden}  {ranks}{count(config.num_envs, 'environment')}, {workers}"

    @property
    def directory(self) -> str:
        """The run directory, relative to the current directory if that is shorter."""
        return printable(short_path(self.run_dir))


def evaluation_text(row: Mapping[str, float]) -> str:
    """Return the return ± spread of an evaluation, a metric of `info` (the success or else the first), and when it was.

    row: as in eval.csv.
    """
    prefix = f"eval/{PREFIX}"
    metric = min((name for name in row if name.startswith(prefix)), key=_not_success, default="")
    shown = f"  {metric.removeprefix(prefix)} {number(row[metric])}" if metric else ""
    spread = f"{number(row['eval/return'])} ± {number(row['eval/return_std'])}"
    return f"{spread}{shown}  at iteration {row['iteration']:,.0f}"


def because(reason: str | None) -> str:
    """Return the end of the sentence that a run has stopped. reason: `stop_reason` of summary.json. None: unknown."""
    if reason in (None, "error", "finished"):
        return ""
    texts = {"signal": "of a signal", "callback": "of the callback"}
    return f", because {texts.get(reason, reason)}"


def _not_success(name: str) -> bool:
    return not name.endswith("success")


def count(amount: int, noun: str) -> str:
    """Return for example "1 worker" or "2 workers"."""
    return f"{amount:,} {noun}" + ("" if amount == 1 else "s")
