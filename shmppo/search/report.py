"""The files at the end of a search: trials.csv, best.json, and plots."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from shmppo.config.command_line import program
from shmppo.config.differences import differences
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ShmppoError
from shmppo.loggers.text import number
from shmppo.plotting.style import COLORS, label, new_figure, save
from shmppo.search.options import SearchOptions
from shmppo.search.study import SearchStudy
from shmppo.search.view import STATES, option_text, ranking, trial_value
from shmppo.utils.files import replaced_file, short_path, write_json

PANELS = 3
"""Panels of a row of slices.svg."""


def report(options: SearchOptions, base: TrainConfig, study: SearchStudy, directory: Path) -> None:
    """Write best.json and the plots, and print the best trial.

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
    write_json(directory / "best.json", differences(dataclasses.replace(base, **chosen, run_dir=None)))
    files = ["best.json", "trials.csv"]
    if importlib.util.find_spec("matplotlib") is not None:
        files += _plot(ranking(trials), directory)
    steps = sum(trial.user_attrs.get("env_steps", 0) for trial in trials)
    names = {"last": "return at the end", "mean": "mean return over training"}
    what = names.get(options.objective, f"{options.objective} at the end")
    seeds = "" if options.seeds == 1 else f" (interquartile mean of {options.seeds} seeds)"
    again = f"  {program('train')} --config {shlex.quote(short_path(directory / 'best.json'))}"
    lines = [
        f"trials         {len(trials)}: {', '.join(f'{count} {name}' for name, count in counts.items() if count)}",
        f"steps          {steps:,}",
        f"best           trial {best.number}: {what} {number(best.value or 0.0)}{seeds}",
        *(f"               {name} {option_text(value)}" for name, value in chosen.items()),
        f"files          {short_path(directory)}: {', '.join(files)}",
        "next, with a seed that the search has not used",
        f"{again} --seed {base.seed + options.seeds}",
    ]
    if counts["running"]:
        lines.append("the same command continues the running trials")
    print("\n".join(lines))


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


def _plot(judged: Sequence[FrozenTrial], directory: Path) -> list[str]:
    """Draw importance.svg and slices.svg. Returns their names; none if there are too few trials."""
    names = list(dict.fromkeys(name for trial in judged for name in trial.params))
    varied = [name for name in names if len({str(trial.params.get(name)) for trial in judged}) > 1]
    if len(judged) < 4 or not varied:
        return []
    _plot_importance(judged, directory / "importance.svg")
    _plot_slices(judged, varied, directory / "slices.svg")
    return ["importance.svg", "slices.svg"]


def _plot_importance(judged: Sequence[FrozenTrial], path: Path) -> None:
    """Draw how much each option matters, by Optuna's PED-ANOVA (arXiv 2304.10255).

    The objective is that of the first rung, which all trials have reached. Optuna considers only options that all
    trials have, so the first trial is left out if its values of the command line lie outside the space.
    """
    study = optuna.create_study(direction="maximize")
    common = set.intersection(*(set(trial.params) for trial in judged if trial.number))
    for trial in judged:
        if common <= set(trial.params):
            value = trial.intermediate_values[0]
            study.add_trial(create_trial(params=trial.params, distributions=trial.distributions, value=value))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    importances = optuna.importance.get_param_importances(study, evaluator=evaluator)
    names = list(importances)[::-1]
    figure, (axis,) = new_figure(1, 1, height=0.5 + 0.25 * len(names))
    axis.barh(names, [importances[name] for name in names], color=COLORS[0])
    label(axis, "importance", "", "Importance of each option for the objective at the first rung")
    save(figure, path)


def _plot_slices(judged: Sequence[FrozenTrial], names: Sequence[str], path: Path) -> None:
    """Draw the objective over each option. Trials that trained longer are darker."""
    rungs = max(len(trial.intermediate_values) for trial in judged)
    rows = -(-len(names) // PANELS)
    figure, axes = new_figure(rows, PANELS, height=2.0, headline="Objective of the trials over each option")
    for axis, name in zip(axes, names, strict=False):
        having = [trial for trial in judged if name in trial.params]
        x = [trial.params[name] for trial in having]
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in x)
        shades: Any = [0.25 + 0.75 * len(trial.intermediate_values) / rungs for trial in having]
        axis.scatter(
            x if numeric else [str(value) for value in x], [trial_value(trial) or 0.0 for trial in having],
            color=COLORS[0], alpha=shades, s=14, linewidths=0,
        )  # fmt: skip
        if numeric and min(x) > 0 and max(x) / min(x) >= 20:
            axis.set_xscale("log")
        label(axis, name, "objective")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    save(figure, path)
