"""The search space: which options of a trial vary, and between which values.

A space is a mapping from options of `train` to ranges or choices, for example in YAML:

    learning_rate: {low: 1e-4, high: 1e-2, log: true}
    rollout_steps: {choices: [64, 128, 256]}
    core: {choices: [lstm, none]}
    seq_len: {low: 8, high: 32, step: 8, when: {core: lstm}}

It can also be a function that gets an `optuna.Trial` and returns such options with their values.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shmppo.config.checks import flag, require, shown
from shmppo.config.flags import read_mapping
from shmppo.config.options import NetworkOptions, ObjectiveOptions, OptimizerOptions, TaskOptions, UpdateOptions
from shmppo.config.plugins import load_object
from shmppo.config.train_config import TrainConfig, check_names, field_types, typed_fields
from shmppo.errors import ConfigError
from shmppo.utils.files import user_path
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

if TYPE_CHECKING:
    from optuna import Trial

_RANGE_KEYS = {"low", "high", "step", "log", "when"}
_CHOICE_KEYS = {"choices", "when"}
_FIXED = ("seed", "total_steps", "anneal_steps")
SEARCHABLE = tuple(
    field.name
    for group in (TaskOptions, NetworkOptions, UpdateOptions, ObjectiveOptions, OptimizerOptions)
    for field in dataclasses.fields(group)
    if field.name not in _FIXED
)
"""Options that a space can vary. The others do not define a configuration, or belong to the search."""
_RECURRENT = {"core": [core for core in typing.get_args(field_types()["core"]) if core != "none"]}
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
    "seq_len": {"choices": [8, 16, 32], "when": _RECURRENT},
    "hidden_size": {"choices": [32, 64, 128]},
    "max_grad_norm": {"choices": [0.3, 0.5, 1.0, 2.0]},
    "value_coef": {"low": 0.25, "high": 1.0},
}
"""The space of a search without --space."""


@dataclass(frozen=True)
class Parameter:
    """An option with the values that it may have."""

    name: str
    choices: tuple[Any, ...] = ()
    """The values to choose from. Empty for a range."""
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    """The option varies only if each of these options has one of the values. Otherwise it keeps its fixed value."""

    @property
    def whole(self) -> bool:
        """Whether the values of a range are whole numbers."""
        kind = field_types()[self.name]
        return float not in (kind, *typing.get_args(kind))

    def applies(self, fields: Mapping[str, Any]) -> bool:
        """Whether the option varies. fields: values of all options."""
        return all(fields[name] in values for name, values in self.when.items())

    def holds(self, value: Any) -> bool:
        """Whether this is one of the values that the option may have."""
        if self.choices:
            return value in self.choices
        if value is None or not self.low <= value <= self.high:
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return math.isclose(steps, round(steps), abs_tol=1e-9)

    def stored(self, value: Any) -> Any:
        """Return one of the values that the option may have as Optuna stores it."""
        return _label(self.choices[self.choices.index(value)] if self.choices else value)

    def suggest(self, trial: Trial) -> Any:
        """Let the sampler of the trial choose a value."""
        if self.choices:
            labels = [_label(choice) for choice in self.choices]
            return self.choices[labels.index(trial.suggest_categorical(self.name, labels))]
        if self.whole:
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True)
class Space:
    """The options that the trials of a study vary."""

    parameters: tuple[Parameter, ...] = ()
    function: Callable[[Trial], Mapping[str, Any]] | None = None
    """Chooses the options instead of `parameters`."""
    identity: str = ""
    """Text that is the same for the same space."""

    def known_values(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the command line that are in the space, as Optuna stores them.

        Args:
            fixed: values of all options before a choice.
        """
        return {part.name: part.stored(fixed[part.name]) for part in self.parameters if part.holds(fixed[part.name])}

    def suggest(self, trial: Trial, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Choose the options of a trial. A repeated call for the same trial returns the same.

        With `parameters`, the first trial keeps the values of the command line, also those outside the space.

        Args:
            trial: of Optuna.
            fixed: values of all options before the choice.

        Raises:
            ConfigError: if a function of the user fails, or returns options that are not searchable.
        """
        if self.function is not None:
            return _call(self.function, trial)
        chosen: dict[str, Any] = {}
        for parameter in self.parameters:
            known = parameter.holds(fixed[parameter.name])
            if (trial.number or known) and parameter.applies({**fixed, **chosen}):
                chosen[parameter.name] = parameter.suggest(trial)
        return chosen


def load_space(source: str | None) -> Space:
    """Return the space that --space names.

    Args:
        source: a file, or `module:function`. None: the default space.

    Raises:
        ConfigError: if it cannot be read or used.
    """
    if source is None:
        return parse_space(DEFAULT_SPACE, "the default space")
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
    try:
        parameters = tuple(_parse(name, values) for name, values in named.items())
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    known: set[str] = set()
    for parameter in parameters:
        later = [name for name in parameter.when if name in named and name not in known]
        require(
            not later, f"{where}: {parameter.name} depends on {''.join(later[:1])}, which follows it; exchange them"
        )
        known.add(parameter.name)
    return Space(parameters, identity=json.dumps([dataclasses.asdict(parameter) for parameter in parameters]))


def _parse(name: str, values: Any) -> Parameter:
    """Check one option of a space and its values."""
    _check_searchable(name)
    require(
        isinstance(values, Mapping) and ("choices" in values or {"low", "high"} <= set(values)),
        f"{name} is {shown(values)}; write {{choices: [...]}} or {{low: ..., high: ...}}",
    )
    allowed = _CHOICE_KEYS if "choices" in values else _RANGE_KEYS
    for key in values:
        require(key in allowed, f"{name} has the key {shown(key)}; use {', '.join(sorted(allowed))}")
    when = _parse_condition(name, values.get("when", {}))
    if "choices" in values:
        choices = values["choices"]
        require(isinstance(choices, list) and len(choices) > 0, f"{name}: choices is {shown(choices)}; write a list")
        return Parameter(name, tuple(_typed(name, choice) for choice in choices), when=when)
    low, high = (_typed(name, values[key]) for key in ("low", "high"))
    for key, value in (("low", low), ("high", high)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        require(number, f"{name}: {key} is {shown(value)}; it must be a number, use choices for other values")
    step, log = values.get("step"), values.get("log", False)
    require(low < high, f"{name}: low is {low} and high is {high}; low must be smaller")
    require(isinstance(log, bool), f"{name}: log is {shown(log)}; it must be true or false")
    require(not log or low > 0, f"{name}: low is {low}; a logarithmic range must be positive")
    require(not (log and step is not None), f"{name} has both step and log; leave one of them out")
    if step is not None:
        step = _typed(name, step)
        require(0 < step <= high - low, f"{name}: step is {step}; it must be positive and at most high - low")
    return Parameter(name, (), low, high, step, log, when)


def _parse_condition(name: str, condition: Any) -> dict[str, tuple[Any, ...]]:
    """Check the condition of an option: a mapping from options to a value or a list of values."""
    require(isinstance(condition, Mapping), f"{name}: when is {shown(condition)}; write {{OPTION: VALUE}}")
    try:
        check_names(condition)
    except ConfigError as error:
        raise ConfigError(f"{name}: when: {error}") from error
    lists = {option: value if isinstance(value, list) else [value] for option, value in condition.items()}
    return {option: tuple(_typed(option, value) for value in options) for option, options in lists.items()}


def _check_searchable(name: str) -> None:
    """Raise ConfigError if a space cannot vary an option."""
    check_names([name])
    require(
        name in SEARCHABLE,
        f"{flag(name)} cannot vary between trials, because it does not define a configuration or belongs to the "
        "search; leave it out of the space",
    )


def _typed(name: str, value: Any) -> Any:
    """Return a value with the type of its option."""
    return typed_fields({name: value})[name]


def _label(choice: Any) -> Any:
    """Return a choice as a value that Optuna can store: lists and mappings as text."""
    return choice if choice is None or isinstance(choice, (bool, int, float, str)) else json.dumps(choice)


def _call(function: Callable[[Trial], Mapping[str, Any]], trial: Trial) -> dict[str, Any]:
    """Call the user's function and check what it returns."""
    try:
        chosen = function(trial)
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise ConfigError(
            f"--space: {function.__qualname__} raised {describe_error(error)}; correct it",
            details=user_traceback(error),
        ) from error
    require(
        isinstance(chosen, Mapping),
        f"--space: {function.__qualname__} returned {shown(chosen)}; it must return a dict of options",
    )
    for name in chosen:
        _check_searchable(name)
    return typed_fields(chosen)


def trial_config(base: TrainConfig, chosen: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a trial. Raises ConfigError if it cannot run."""
    return dataclasses.replace(base, **chosen)
