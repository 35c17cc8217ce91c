"""What a search shows: a table in a terminal, and a line per finished trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shmppo.errors import print_text
from shmppo.loggers.text import clock, number
from shmppo.plotting.curves import short
from shmppo.search.options import SearchOptions
from shmppo.search.study import SearchStudy
from shmppo.search.trial_run import TrialRun

ROWS = 8
"""Trials that the table shows."""
UPDATE_SECONDS = 0.5
STATES = {
    TrialState.WAITING: "waiting", TrialState.RUNNING: "running", TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "stopped", TrialState.FAIL: "failed",
}  # fmt: skip


def trial_value(trial: FrozenTrial) -> float | None:
    """Return the newest objective of a trial; None if it has none."""
    last = trial.last_step
    return None if last is None else trial.intermediate_values[last]


def ranking(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that have an objective and have not failed: those that trained longest first, then the best."""
    judged = [trial for trial in trials if trial_value(trial) is not None and trial.state != TrialState.FAIL]
    return sorted(judged, key=lambda trial: (-len(trial.intermediate_values), -(trial_value(trial) or 0.0)))


def changes_text(trial: FrozenTrial) -> str:
    """Return the options that a trial varies, in one line."""
    return " ".join(f"{name}={short(value)}" for name, value in trial.params.items())


class SearchView:
    """The display of a search while the context is open."""

    def __init__(self, options: SearchOptions, study: SearchStudy) -> None:
        self._options, self._study = options, study
        console = Console(highlight=False)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._began, self._shown = time.monotonic(), 0.0
        self._printed = {trial.number for trial in study.trials() if trial.state.is_finished()}

    def __enter__(self) -> SearchView:
        if self._printed:
            print(f"continuing a search with {len(self._printed)} finished trials", flush=True)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._shown = 0.0
        if kind is None:
            self.show(())
        if self._live is not None:
            self._live.stop()

    def show(self, running: Sequence[TrialRun], *, stopping: bool = False) -> None:
        """Show the state of the search, unless it was shown a moment ago.

        Args:
            running: runs with a process.
            stopping: whether the search waits until its runs have saved checkpoints.
        """
        if time.monotonic() - self._shown < UPDATE_SECONDS:
            return
        self._shown = time.monotonic()
        trials = self._study.trials()
        if self._live is not None:
            self._live.update(self._picture(trials, running, stopping), refresh=True)
            return
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._printed:
                self._printed.add(trial.number)
                value, steps = trial_value(trial), trial.user_attrs.get("env_steps", 0)
                result = trial.user_attrs.get("reason", "" if value is None else f"objective {number(value)}")
                state = f"{STATES[trial.state]} after {steps:,} steps: {result}"
                print_text(f"trial {trial.number} {state}  {changes_text(trial)}")

    def _picture(self, trials: Sequence[FrozenTrial], running: Sequence[TrialRun], stopping: bool) -> Group:
        ended = sum(trial.state.is_finished() for trial in trials)
        steps = sum(trial.user_attrs.get("env_steps", 0) for trial in trials)
        note = "pausing the running trials" if stopping else ""
        seconds = clock(time.monotonic() - self._began)
        lines = [f"search  {ended} of {self._options.trials} trials  {steps:,} steps  {seconds}  {note}"]
        for run in running:
            cores = f"{'cores' if len(run.cores) > 1 else 'core'} {', '.join(map(str, run.cores))}"
            progress = f"iteration {len(run.rows())} of {run.iterations}"
            lines.append(f"  trial {run.trial}  seed {run.config.seed}  {progress}  {cores}")
        table = Table("trial", "state", "steps", "objective", "options", box=None, header_style="")
        for column in table.columns:
            column.no_wrap = True
            column.justify = "right" if column.header in ("trial", "steps", "objective") else "left"
        for trial in ranking(trials)[:ROWS]:
            value = number(trial_value(trial) or 0.0)
            trained = f"{trial.user_attrs.get('env_steps', 0):,}"
            table.add_row(str(trial.number), STATES[trial.state], trained, value, Text(changes_text(trial)))
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines), table)
