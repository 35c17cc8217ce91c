"""The flags of the command `search`. The module does not import torch or Optuna, so that the help text is fast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shmppo.config.checks import flag, require
from shmppo.config.command_line import given_fields, parse
from shmppo.config.flags import SourceOptions, parse_start
from shmppo.config.option import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE_NUMBER,
    Bound,
    check_bounds,
    fields_with,
    option,
    traits_of,
)
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import Trusted
from shmppo.utils.commands import program
from shmppo.utils.files import user_path

SET_BY_SEARCH = {*fields_with(TrainConfig, set_by_search=True), *fields_with(SourceOptions, set_by_search=True)}
"""Fields of the training configuration that the search sets itself."""


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search. The flags after `--` are those of train, and all trials have them."""

    trials: int = option(27, AT_LEAST_1)
    """Number of trials: configurations to try."""
    space: str | None = None
    """What to vary: a YAML or JSON file, or `module:function` that gets an Optuna trial and returns options with their
    values. None: a space of 13 options for PPO."""
    objective: str = "last"
    """What to maximize: the mean return of 100 episodes at the end of training (last), its mean over training (mean),
    which prefers fast learning, or the mean of a number of `info` at the end, for example info/is_success. With
    --eval-every, also eval/return or eval/info/KEY of the evaluation at the end."""
    seeds: int = option(1, AT_LEAST_1)
    """Runs per trial, with the seeds --seed, --seed + 1, … of train. The objective is their mean, from 4 runs
    on the interquartile mean."""
    confirm: int = option(0, NOT_NEGATIVE)
    """At the end, train the best options and the unchanged ones with this many new seeds each, and compare them."""
    rungs: int = option(3, AT_LEAST_1)
    """Number of rungs. At each rung, the trials of a bracket pause, and the best continue. A bracket has
    eta^(rungs - 1) trials. 1: all trials train to the end."""
    eta: int = option(3, Bound("be at least 2", lambda v: v >= 2))
    """From one rung to the next, 1 / eta of the trials continue, with eta times the environment steps."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Optuna's sampler."""
    search_seed: int = option(0, NOT_NEGATIVE)
    """Seed of the sampler."""
    jobs: int | None = option(None, AT_LEAST_1)
    """Largest number of runs at the same time. They share the cores of this machine. None: one per core."""
    minutes: float | None = option(None, POSITIVE_NUMBER)
    """Time limit of this call in minutes. After it, the running trials pause. The same command continues them. None: no
    limit."""
    search_dir: Path = Path("runs/search")
    """Directory of the search: its runs, trials.csv, best.json, and study.log. If the directory contains a search, it
    continues."""


def parse_search(arguments: Sequence[str]) -> tuple[SearchOptions, TrainConfig, Trusted]:
    """Parse a command line: flags of the search, and after `--` those of train.

    Returns:
        The options of the search, the configuration that its trials change, and the modules that they may import.

    Raises:
        ConfigError: for an unknown flag or a wrong value.
        SystemExit: with code 0 after --help.
    """
    arguments = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, training = arguments[:end], arguments[end + 1 :]
    prog, known = program("search"), {field.name for field in dataclasses.fields(SearchOptions)}
    misplaced = sorted(given_fields(own) & TrainConfig().fields().keys() - known - SET_BY_SEARCH)
    require(not misplaced, f"{', '.join(map(flag, misplaced))} of train must follow after --: {prog} … -- --env …")
    options: SearchOptions = parse(
        SearchOptions, own, prog,
        text="Search for good hyperparameters with Optuna. Flags of train follow after --.\n\n"
        "At each rung, only the best trials go on. The same command continues a search.",
        example="--trials 27 --objective mean -- --env Pendulum-v1 --hide-obs 2",
    )  # fmt: skip
    check_bounds(options)
    taken = sorted(given_fields(training) & SET_BY_SEARCH)
    require(not taken, f"{', '.join(map(flag, taken))} after -- belongs to the search; leave it out")
    config, start = parse_start(training, script=f"{prog} --")
    for field in dataclasses.fields(config):
        reason = traits_of(field).unfit_for_search
        require(not reason or not getattr(config, field.name), f"{flag(field.name)} {reason}; search without it")
    info, name = [key.metric for key in config.reported_info], options.objective
    evaluated = [f"eval/{metric}" for metric in ("return", *info)] if config.eval_every is not None else []
    metrics = ["last", "mean", *info, *evaluated]
    more = "or after -- add --info-keys, or --eval-every for eval/return"
    require(name in metrics, f"--objective is {name}; use {', '.join(metrics)}, {more}")
    user_path(options.search_dir, "--search-dir")
    return options, config, start.trust
