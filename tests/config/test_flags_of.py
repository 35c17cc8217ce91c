"""The flags that are read from option dataclasses, and the values that extensions add to them."""

from __future__ import annotations

import typing
from dataclasses import MISSING, dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shmppo.config.command_line import field_texts, flags_of, given_fields, with_texts
from shmppo.config.extensions import added_values
from shmppo.config.train_config import TrainConfig, field_types
from shmppo.search.options import SearchOptions


@dataclass(frozen=True)
class AnimalOptions:
    """The animals."""

    legs: int = 4
    """Number of legs."""
    speed: float | None = None
    """Speed in m/s. None: as fast as it
    can."""


@dataclass(frozen=True, kw_only=True)
class Zoo(AnimalOptions):
    """A zoo."""

    file: tyro.conf.Positional[Path]  # type: ignore[misc]
    """The file."""
    names: dict[str, int] = field(default_factory=lambda: {"a": 1})
    """Names."""
    hidden: Annotated[int, tyro.conf.Suppress] = 3
    """Not a flag."""


def test_flags_have_names_defaults_texts_and_the_class_that_defines_them() -> None:
    found = {flag.field: (flag.default, flag.text, flag.owner, flag.positional) for flag in flags_of(Zoo)}
    assert found == {
        "legs": (4, "Number of legs.", AnimalOptions, False),
        "speed": (None, "Speed in m/s. None: as fast as it can.", AnimalOptions, False),
        "file": (MISSING, "The file.", Zoo, True),
        "names": ({"a": 1}, "Names.", Zoo, False),
    }


def test_a_field_that_is_a_dataclass_contributes_its_flags_with_the_defaults_of_the_object() -> None:
    outer = make_dataclass("Outer", [("animal", AnimalOptions, field(default=AnimalOptions(legs=8)))], frozen=True)
    assert {flag.field: flag.default for flag in flags_of(outer)} == {"legs": 8, "speed": None}
    assert field_texts(outer) == {}
    with_texts(outer)
    assert AnimalOptions.__dataclass_fields__["speed"].metadata["help"] == "Speed in m/s. None: as fast as it can."


def test_every_flag_of_a_configuration_has_a_text() -> None:
    assert set(field_texts(TrainConfig)) == set(TrainConfig().fields())


def test_given_fields_have_any_spelling() -> None:
    words = ["--num_envs", "3", "--gamma=0.9", "--no-normalize-obs", "--no_quiet", "x--seed", "-1"]
    assert given_fields(words) >= {"num_envs", "gamma", "normalize_obs", "quiet"}
    assert "seed" not in given_fields(words)


def test_an_option_has_the_added_values_and_its_text_their_sentences() -> None:
    for option, own in (("objective", ("clip", "penalty")), ("env_backend", ("auto", "gymnasium"))):
        added = added_values(option)
        assert typing.get_args(field_types()[option]) == (*own, *added)
        assert field_texts(TrainConfig)[option].endswith(" ".join(added.values()))
    assert set(added_values("objective")) == {"distill", "clone"}
    assert added_values("core") == {}


def test_an_option_of_another_command_with_the_same_name_has_no_such_text() -> None:
    assert "clone" not in field_texts(SearchOptions)["objective"]
