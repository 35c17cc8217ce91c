"""The table of flags that is read from option dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shmppo.config.flag_table import Flag, field_docs, flag_groups, sentences
from shmppo.config.train_config import TrainConfig


@dataclass(frozen=True)
class AnimalOptions:
    """The animals. More about them."""

    legs: int = 4
    """Number of legs."""
    speed: float | None = None
    """Speed in m/s. Second sentence. None: as fast as it
    can."""


@dataclass(frozen=True, kw_only=True)
class Zoo(AnimalOptions):
    """A zoo.

    More.
    """

    file: tyro.conf.Positional[Path]  # type: ignore[misc]
    """The file."""
    kinds: tuple[Literal["cat", "dog"], ...] = ()
    """Kinds."""
    open: bool = True
    """Open it."""
    names: Mapping[str, Any] = field(default_factory=lambda: {"a": 1})
    """Names."""
    hidden: Annotated[int, tyro.conf.Suppress] = 3
    """Not a flag."""
    out: Path = Path("zoo.svg")
    """Result."""
    rate: Annotated[float, tyro.conf.arg(help="Rate.", metavar="HZ")] = 1e-5


def flags_of(kind: type, default: Any = None) -> dict[str, Flag]:
    return {flag.field: flag for group in flag_groups(kind, default) for flag in group.flags}


def test_flags_have_names_values_and_defaults() -> None:
    found = {name: (flag.name, flag.metavar, flag.help) for name, flag in flags_of(Zoo).items()}
    assert found == {
        "file": ("FILE", "", "The file."),
        "kinds": ("--kinds", "[{cat,dog} ...]", "Kinds. Default: none."),
        "open": ("--open / --no-open", "", "Open it. Default: on."),
        "names": ("--names", "[KEY=VALUE ...]", "Names. Default: a=1."),
        "out": ("--out", "FILE", "Result. Default: zoo.svg."),
        "rate": ("--rate", "HZ", "Rate. Default: 1e-05."),
        "legs": ("--legs", "INT", "Number of legs. Default: 4."),
        "speed": ("--speed", "FLOAT", "Speed in m/s. Second sentence. Default: as fast as it can."),
    }


def test_flags_are_grouped_by_the_class_that_defines_them() -> None:
    groups = flag_groups(Zoo)
    assert [(group.title, group.text) for group in groups] == [("Flags", "A zoo."), ("Animal", "The animals.")]
    assert [flag.field for flag in groups[1].flags] == ["legs", "speed"]


def test_defaults_come_from_an_object_and_none_is_explained_if_it_is_not_the_default() -> None:
    flags = flags_of(AnimalOptions, AnimalOptions(legs=2, speed=1.5))
    assert flags["legs"].help == "Number of legs. Default: 2."
    assert flags["speed"].help == "Speed in m/s. Second sentence. None: as fast as it can. Default: 1.5."
    assert (flags["speed"].default, flags_of(AnimalOptions)["speed"].default) == ("1.5", "")


def test_a_field_that_is_a_dataclass_contributes_its_own_groups() -> None:
    outer = make_dataclass("Outer", [("animal", AnimalOptions, field(default=AnimalOptions(legs=8)))], frozen=True)
    assert flags_of(outer)["legs"].default == "8"
    assert field_docs(outer) == {}


def test_every_flag_of_a_configuration_has_a_text_and_no_class_lacks_one() -> None:
    docs = field_docs(TrainConfig)
    assert set(docs) == set(TrainConfig().fields())
    for flag in flags_of(TrainConfig).values():
        assert flag.default_sentence, f"{flag.field}: say what None means in a sentence that begins with None:"


def test_the_sentence_about_the_default_can_be_left_out() -> None:
    kind = make_dataclass("Kept", [("size", int, field(default=3, metadata={"default_sentence": ""}))])
    assert flags_of(kind)["size"].help == ""


def test_groups_with_a_required_flag_come_first() -> None:
    outer = make_dataclass("Visit", [("zoo", Zoo), ("size", int, field(default=3))], frozen=True)
    assert [group.title for group in flag_groups(outer)] == ["Flags", "Flags", "Animal"]
    assert [flag.field for flag in flag_groups(outer)[1].flags] == ["size"]


def test_sentences() -> None:
    assert sentences("One. Two\nlines (a.b). Three?") == ["One.", "Two lines (a.b).", "Three?"]
