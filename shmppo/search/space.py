"""The search space: which options of a trial vary, and between which values.

A space is a mapping from options of `train` to ranges or choices, for example in YAML:

    learning_rate: {low: 1e-4, high: 1e-2, log: true}
    rollout_steps: {choices: [64, 128, 256]}
    core: {choices: [lstm, none]}
    seq_len: {low: 8, high: 32, step: 8}

It can also be a function that gets an `optuna.Trial` and returns options with their values.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from shmppo.config.checks import flag, require, shown
from shmppo.config.flags import read_mapping
from shmppo.config.option import fields_with
from shmppo.config.options import NetworkOptions, ObjectiveOptions, OptimizerOptions, TaskOptions, UpdateOptions
from shmppo.config.plugins import load_object
from shmppo.config.train_config import EXTENSIONS, TrainConfig, check_names, field_types, typed_fields
from shmppo.errors import ConfigError
from shmppo.utils.files import user_path
from shmppo.utils.user_code import as_config_error

SEARCHABLE = tuple(
    name
    for group in (TaskOptions, NetworkOptions, UpdateOptions, ObjectiveOptions, OptimizerOptions, *EXTENSIONS)
    for name in fields_with(group, searchable=True, resumable=False, unfit_for_search="")
)
"""Options that a space can vary. The others do not define what is trained, or belong to the search."""
DEFAULT_SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "gamma": {"choices": [0.9, 0.95, 0.98, 0.99, 0.995]},
    "gae_lambda": {"choices": [0.8, 0.9, 0.95, 0.98]},
    "entropy_coef": {"low": 1e-5, "high": 0.03, "log": True},
    "clip": {"choices": [0.1, 0.2, 0.3]},
    "epochs": {"choices": [2, 4, 8, 16]},
    "minibatches": {"choices": [2, 4, 8]},
    "num_envs": {"choices": [4, 8, 16, 32]},
    "rollout_steps": {"choices": [32, 64, 128, 256]},
    "seq_len": {"choices": [8, 16, 32]},
    "hidden_size": {"choices": [32, 64, 128]},
    "max_grad_norm": {"choices": [0.3, 0.5, 1.0, 2.0]},
    "value_coef": {"low": 0.25, "high": 1.0},
}
"""The space of a search without --space. seq_len is only for recurrent policies."""


@dataclass(frozen=True)
class Space:
    """The options that the trials of a study vary."""

    distributions: Mapping[str, BaseDistribution] = dataclasses.field(default_factory=dict)
    """Optuna's distribution of each option."""
    choices: Mapping[str, Mapping[Any, Any]] = dataclasses.field(default_factory=dict)
    """The values of options that are chosen from a list, by the value that Optuna stores for them."""
    function: Callable[[Trial], Mapping[str, Any]] | None = None
    """Chooses the options instead of `distributions`."""
    identity: str = ""
    """Text that is the same for the same space."""

    def baseline(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the command line that are in the space, as Optuna stores them.

        Args:
            fixed: values of all options before a choice.
        """
        stored = {name: _stored(fixed[name]) for name in self.distributions}
        return {name: value for name, value in stored.items() if self._contains(name, value)}

    def _contains(self, name: str, value: Any) -> bool:
        part = self.distributions[name]
        if not isinstance(part, (IntDistribution, FloatDistribution)):
            return value in self.choices[name]
        if value is None or not part.low <= value <= part.high:
            return False
        steps = (value - part.low) / part.step if part.step else 0.0
        return math.isclose(steps, round(steps), abs_tol=1e-9)

    def options(self, trial: Trial) -> dict[str, Any]:
        """Return the options that a trial varies, with their values.

        Args:
            trial: of Optuna; the sampler has chosen from `distributions`.

        Raises:
            ConfigError: if a function of the user fails, or returns options that are not searchable.
        """
        if self.function is None:
            return {name: self.choices[name][v] if name in self.choices else v for name, v in trial.params.items()}
        where = f"--space: {self.function.__qualname__}"
        with as_config_error(where, "; correct it"):
            chosen = self.function(trial)
        require(isinstance(chosen, Mapping), f"{where} returned {shown(chosen)}; it must return a dict of options")
        for name in chosen:
            _check_searchable(name)
        return typed_fields(chosen)


def load_space(source: str | None, base: TrainConfig) -> Space:
    """Return the space that --space names.

    Args:
        source: a file, or `module:function`. None: the default space.
        base: configuration that the trials change.

    Raises:
        ConfigError: if it cannot be read or used.
    """
    if source is None:
        kept = {name: values for name, values in DEFAULT_SPACE.items() if base.recurrent or name != "seq_len"}
        return parse_space(kept, "the default space")
    path = user_path(source, "--space")
    if ":" in source and not path.exists():
        return Space(function=load_object(source, "--space"), identity=source)
    return parse_space(read_mapping(path, "--space"), f"--space {path}")


def parse_space(content: Mapping[str, Any], where: str) -> Space:
    """Make a space from a mapping of options to ranges and choices.

    Args:
        content: the mapping.
        where: beginning of error messages.

    Raises:
        ConfigError: if an option or its range cannot be used.
    """
    require(bool(content), f"{where} is empty; name at least one option and its values")
    named = {str(name).replace("-", "_"): values for name, values in content.items()}
    distributions: dict[str, BaseDistribution] = {}
    choices: dict[str, dict[Any, Any]] = {}
    for name, values in named.items():
        try:
            _check_searchable(name)
            if isinstance(values, Mapping) and values.keys() == {"choices"}:
                typed = [typed_fields({name: choice})[name] for choice in values["choices"]]
                choices[name] = {_stored(choice): choice for choice in typed}
                distributions[name] = CategoricalDistribution(tuple(choices[name]))
            else:
                distributions[name] = _range(name, values)
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}: {error}") from error
        except (TypeError, ValueError) as error:  # of Optuna
            form = "write {choices: [...]} or {low: ..., high: ...}, with step or log: true if needed"
            raise ConfigError(f"{where}: {name}: {error}; {form}") from error
    return Space(distributions, choices, identity=json.dumps(named))


def _range(name: str, values: Any) -> IntDistribution | FloatDistribution:
    """Return the distribution of a range. Raises TypeError or ValueError if Optuna cannot use it."""
    numbers = {key: typed_fields({name: value})[name] for key, value in dict(values).items() if key != "log"}
    kind = field_types()[name]
    distribution = FloatDistribution if float in (kind, *typing.get_args(kind)) else IntDistribution
    return distribution(**numbers, log=values.get("log", False))


def _check_searchable(name: str) -> None:
    """Raise ConfigError if a space cannot vary an option."""
    check_names([name])
    require(name in SEARCHABLE, f"{flag(name)} cannot vary between trials; leave it out of the space")


def _stored(choice: Any) -> Any:
    """Return a choice as a value that Optuna can store: lists and mappings as text."""
    return choice if choice is None or isinstance(choice, (bool, int, float, str)) else json.dumps(choice)
