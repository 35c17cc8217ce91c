"""How an option is declared: its bounds and what else is known stand at its field, and the rest follows from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from shmppo.config.checks import flag, require


class Bound(NamedTuple):
    """A rule for the values of an option. None passes every rule."""

    rule: str
    """Completes the sentence "it must …"."""
    holds: Callable[[Any], bool]


TOO_LARGE = 1e30
"""Products of smaller numbers with ordinary numbers stay finite in float32."""
MAX_UNITS, MAX_LAYERS = 2**20, 100
MAX_OPTION_BYTES = 2**16
"""Largest size of the options of `reset` (--env-schedule) as JSON text."""

AT_LEAST_1 = Bound("be at least 1", lambda v: v >= 1)
NOT_NEGATIVE = Bound("be 0 or more", lambda v: v >= 0)
SEED = Bound("lie in 0 … 2^63 - 1", lambda v: 0 <= v < 2**63)
UNITS = Bound(f"be at most {MAX_UNITS}", lambda v: v <= MAX_UNITS)
LAYERS = Bound(f"be at most {MAX_LAYERS}", lambda v: v <= MAX_LAYERS)
LOG_STD = Bound("lie in -20 … 20", lambda v: abs(v) <= 20)
FRACTION = Bound("lie in 0 … 1", lambda v: 0 <= v <= 1)
PROPER_FRACTION = Bound("lie between 0 and 1", lambda v: 0 < v < 1)
POSITIVE_NUMBER = Bound("be positive and below 1e30", lambda v: 0 < v < TOO_LARGE)
POSITIVE_FLOAT32 = Bound("lie between 1e-38 and 1e30", lambda v: 1e-38 <= v < TOO_LARGE)
COEFFICIENT = Bound("be 0 or more and below 1e30", lambda v: 0 <= v < TOO_LARGE)
SECONDS = Bound("be positive and at most 1e6 seconds", lambda v: 0 < v <= 1e6)
"""The functions of the system that wait count in milliseconds with 32 bits."""


@dataclass(frozen=True)
class Traits:
    """What is known about an option besides its type, default, and help text."""

    bounds: tuple[Bound, ...] = ()
    common: bool = False
    """Whether `--help` shows its flag. `--help-all` shows all flags."""
    resumable: bool = False
    """Whether `resume` may change it. At a given iteration, the weights depend on only two of these options: on
    anneal_steps, and on the content of recorded episodes. If a change of anneal_steps alters the schedule of finished
    iterations, or if the recording has other content, no new run gives the same weights, so the run becomes inexact."""
    branchable: bool = False
    """Whether a branch may change it, but no resume in the same directory. Environments, networks, random numbers, and
    the form of the train state do not depend on it."""
    read_by_schedule: bool = False
    """Whether it cannot change with --env-schedule, which may read results of evaluations."""
    one_column: bool = False
    """Whether it needs environments that have one column each, which acts at every step."""
    gymnasium: bool = False
    """Whether it needs environments that are made and stepped one by one."""
    per_rank: bool = False
    """Whether it may differ between ranks, because it does not change the weights."""
    makes_env: bool = False
    """Whether it decides how the environment is made. `check-env` has it, too."""
    derived: bool = False
    """Whether it has no flag, because a run sets it when it begins."""
    inherited: bool = True
    """Whether a new run copies it from the config.json of another run."""
    searchable: bool = True
    """Whether a search can vary it, if it defines what is trained."""
    unfit_for_search: str = ""
    """Why a search refuses it."""
    set_by_search: bool = False
    """Whether a search sets it for its trials."""
    changes_curve: bool = True
    """Whether runs that differ in it are no repetitions of each other in a plot."""
    code: bool = False
    """Whether it names code to import, as `module:attribute`, unless it has its default."""
    only_for_learning: bool = False
    """Whether a trained policy acts without it."""
    path: bool = False
    """Whether it names a file or directory."""
    no_path: tuple[str, ...] = ()
    """Beginnings of values that name something else."""
    copied: bool = False
    """Whether the run directory has a copy of what it needs of the named directory, in one with the option's name."""


def option(default: Any, *bounds: Bound, **traits: Any) -> Any:
    """Declare an option. A mapping as the default is copied for each object.

    Args:
        default: its value if it is not given.
        bounds: rules for its values.
        traits: fields of `Traits`.
    """
    metadata = {"traits": Traits(bounds, **traits)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def neutral_option(default: Any, *bounds: Bound, **traits: Any) -> Any:
    """Declare an option that does not change the curve of a run, so that a resume may change it. See `option`."""
    return option(default, *bounds, resumable=True, changes_curve=False, **traits)


def traits_of(field: dataclasses.Field[Any]) -> Traits:
    """Return the traits of a field. Those of a field that is not declared by `option` are the defaults."""
    traits: Traits = field.metadata.get("traits", Traits())
    return traits


def fields_with(kind: type, **traits: Any) -> tuple[str, ...]:
    """Return the names of the fields of an option class that have all these traits, in their order."""
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if all(getattr(traits_of(field), name) == value for name, value in traits.items())
    )


def check_bounds(options: Any) -> None:
    """Raise ConfigError for the first option that is out of its bounds."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        for rule, holds in traits_of(field).bounds:
            require(value is None or holds(value), f"{flag(field.name)} is {value}; it must {rule}")
