"""What a search shows, and the files at its end: trials.csv and best.json."""

from __future__ import annotations

import csv
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import modules_of, trust_flags
from shmppo.errors import ShmppoError, print_text
from shmppo.loggers.text import number
from shmppo.plotting.curves import mean_name, short
from shmppo.search.options import SearchOptions
from shmppo.search.study import SearchStudy
from shmppo.search.trial_run import TrialRun
from shmppo.utils.commands import program
from shmppo.utils.files import replaced_file, short_path, write_json

ROWS = 8
"""Trials that the table shows."""
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


def picture(count: int, trials: Sequence[FrozenTrial], running: Sequence[TrialRun], *, stopping: bool) -> Group:
    """Return the state of a search: a line for it and for each run with a process, and a table of the best trials.

    Args:
        count: number of trials of the whole search.
        trials: those that have begun.
        running: runs with a process.
        stopping: whether the search waits until its runs have saved checkpoints.
    """
    ended = sum(trial.state.is_finished() for trial in trials)
    steps = sum(trial.user_attrs.get("env_steps", 0) for trial in trials)
    lines = [f"search  {ended} of {count} trials  {steps:,} steps{'  pausing the running trials' * stopping}"]
    for run in running:
        progress = f"iteration {len(run.rows())} of {run.iterations}  cores {', '.join(map(str, run.cores))}"
        lines.append(f"  trial {run.trial}  seed {run.config.seed}  {progress}")
    table = Table("trial", "state", "steps", "objective", "options", box=None, header_style="")
    for column in table.columns[:-1]:  # the options are wrapped
        column.no_wrap = True
    for trial in ranking(trials)[:ROWS]:
        value = number(trial_value(trial) or 0.0)
        trained = f"{trial.user_attrs.get('env_steps', 0):,}"
        options = " ".join(f"{name}={short(value)}" for name, value in trial.params.items())
        table.add_row(str(trial.number), STATES[trial.state], trained, value, Text(options))
    return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines), table, "")


def report(options: SearchOptions, base: TrainConfig, study: SearchStudy, directory: Path) -> None:
    """Write best.json, and print the best trial.

    Args:
        base: configuration that the trials change.
        directory: for the files.

    Raises:
        ShmppoError: if no trial has finished.
    """
    trials = study.trials()
    counts = {name: sum(trial.state == state for trial in trials) for state, name in STATES.items()}
    if not counts["finished"]:
        reasons = [trial.user_attrs["reason"] for trial in trials if trial.state == TrialState.FAIL]
        why = f"{len(reasons)} have failed, the first because: {reasons[0]}" if reasons else "give it more time"
        raise ShmppoError(f"no trial of {short_path(directory)} has finished; {why}")
    best = study.optuna.best_trial
    chosen = best.user_attrs["options"]
    fields, default = dataclasses.replace(base, **chosen, run_dir=None).fields(), TrainConfig().fields()
    write_json(directory / "best.json", {name: value for name, value in fields.items() if value != default[name]})
    steps = sum(trial.user_attrs.get("env_steps", 0) for trial in trials)
    names = {"last": "return at the end", "mean": "mean return over training"}
    what = names.get(options.objective, f"{options.objective} at the end")
    seeds = "" if options.seeds == 1 else f" ({mean_name(options.seeds)} of {options.seeds} seeds)"
    file = shlex.quote(short_path(directory / "best.json"))
    lines = [
        f"trials         {len(trials)}: {', '.join(f'{count} {name}' for name, count in counts.items() if count)}",
        f"steps          {steps:,}",
        f"best           trial {best.number}: {what} {number(best.value or 0.0)}{seeds}",
        *(f"               {name} {short(value)}" for name, value in chosen.items()),
        f"files          {short_path(directory)}: best.json, trials.csv, study.log (for optuna-dashboard)",
        "next, with a seed that the search has not used",
        f"  {program('train')} --config {file} --seed {base.seed + options.seeds + options.confirm}"
        f"{trust_flags(modules_of(base.to_json()))}",
        *["the same command continues the running trials"] * bool(counts["running"]),
    ]
    print_text("\n".join(lines))


def write_table(trials: Sequence[FrozenTrial], path: Path) -> None:
    """Write trials.csv: one row per trial, with a column for each option."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    rows = [
        {
            "trial": trial.number,
            "state": STATES[trial.state],
            "value": trial_value(trial),
            "iteration": trial.user_attrs.get("iteration", 0),
            "env_steps": trial.user_attrs.get("env_steps", 0),
            "seed_values": " ".join(map(str, trial.user_attrs.get("values", ()))),
            "weights_hashes": " ".join(trial.user_attrs.get("weights_hashes", ())),
            "reason": trial.user_attrs.get("reason", ""),
            **{name: trial.params.get(name, "") for name in names},
        }
        for trial in trials
    ]
    with replaced_file(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
