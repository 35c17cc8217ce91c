"""The files at the end of a search: trials.csv and best.json."""

from __future__ import annotations

import csv
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ShmppoError, print_text
from shmppo.loggers.text import number
from shmppo.plotting.curves import short
from shmppo.search.options import SearchOptions
from shmppo.search.study import SearchStudy
from shmppo.search.view import STATES, trial_value
from shmppo.utils.commands import program
from shmppo.utils.files import replaced_file, short_path, write_json


def report(options: SearchOptions, base: TrainConfig, study: SearchStudy, directory: Path) -> None:
    """Write best.json, and print the best trial.

    Args:
        options: of the search.
        base: configuration that the trials change.
        study: of the search.
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
    seeds = "" if options.seeds == 1 else f" (interquartile mean of {options.seeds} seeds)"
    again = f"  {program('train')} --config {shlex.quote(short_path(directory / 'best.json'))}"
    lines = [
        f"trials         {len(trials)}: {', '.join(f'{count} {name}' for name, count in counts.items() if count)}",
        f"steps          {steps:,}",
        f"best           trial {best.number}: {what} {number(best.value or 0.0)}{seeds}",
        *(f"               {name} {short(value)}" for name, value in chosen.items()),
        f"files          {short_path(directory)}: best.json, trials.csv, study.log (for optuna-dashboard)",
        "next, with a seed that the search has not used",
        f"{again} --seed {base.seed + options.seeds}",
        *["the same command continues the running trials"] * bool(counts["running"]),
    ]
    print_text("\n".join(lines))


def write_table(trials: Sequence[FrozenTrial], path: Path) -> None:
    """Write trials.csv: one row per trial, with a column for each option."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    rows = []
    for trial in trials:
        known = trial.user_attrs
        value = trial_value(trial)
        columns = {
            "trial": trial.number,
            "state": STATES[trial.state],
            "value": "" if value is None else value,
            "iteration": known.get("iteration", 0),
            "env_steps": known.get("env_steps", 0),
            "seed_values": " ".join(map(str, known.get("values", ()))),
            "weights_hashes": " ".join(known.get("weights_hashes", ())),
            "reason": known.get("reason", ""),
        }
        rows.append(columns | {name: trial.params.get(name, "") for name in names})
    with replaced_file(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
