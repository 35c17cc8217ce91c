"""What all commands do with their command line: tyro parses it and renders the help text, and `hints` adds advice."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from shmppo.config.checks import flag, integer
from shmppo.config.extensions import added_values
from shmppo.config.hints import refuse_foreign_flags
from shmppo.errors import CommandEnd

HELP_FLAGS = ("-h", "--help", "--help-all")
PARSER_SETTINGS = (tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName)
PARSERS = ConstructorRegistry()


@PARSERS.primitive_rule
def _parser_of_integers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Let integers be written as 1e6."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=lambda words: integer(words[0]),
        is_instance=lambda value: isinstance(value, int), str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


class Flag(NamedTuple):
    """A flag, or a positional argument, of a command."""

    field: str
    """Name of the field that it sets."""
    kind: Any
    """Type of the field, with the annotations for tyro."""
    default: Any
    """MISSING if a value is required."""
    text: str
    owner: type
    """The dataclass that defines the field."""

    @property
    def positional(self) -> bool:
        """Whether its value is written without a flag."""
        return tyro.conf.Positional in getattr(self.kind, "__metadata__", ())


def parse(
    kind: Any, arguments: Sequence[str], prog: str, *, example: str, text: str = "", common: Collection[str] = ()
) -> Any:
    """Parse a command line with tyro, or print the help text that it asks for.

    Args:
        kind: dataclass of the options.
        arguments: the command line.
        prog: the command as the user types it.
        example: flags of an example.
        text: what the command does, for the help text. Empty: the docstring of `kind`.
        common: fields whose flags --help shows; --help-all shows all. Empty: --help shows all flags.

    Returns:
        An object of type `kind`.

    Raises:
        ConfigError: for a flag of another trainer.
        CommandEnd: with code 0 after the help text, or with code 2 after tyro's message about a wrong command line.
    """
    text, flags = text or inspect.getdoc(kind) or "", list(flags_of(kind))
    words = _joined(arguments, {flag(entry.field) for entry in flags if _has_values(entry)})
    if set(HELP_FLAGS) & set(words):
        if common and "--help-all" not in words:
            kind = _only([entry for name in common for entry in flags if entry.field == name])
            text += f"\n\nAdd --help-all to see all {len(flags)} flags."
        words = ["--help"]
    else:
        refuse_foreign_flags(words, [flag(entry.field) for entry in flags if not entry.positional])
    text += f"\n\nExample: {prog} {example}"
    try:
        return tyro.cli(
            with_texts(kind), args=words, prog=prog, description=text, config=PARSER_SETTINGS, registry=PARSERS
        )
    except SystemExit as error:
        raise CommandEnd(error.code) from error


def _has_values(entry: Flag) -> bool:
    """Whether a flag takes any number of values at once."""
    settings = getattr(entry.kind, "__metadata__", ())
    if {tyro.conf.Positional, tyro.conf.UseAppendAction} & {*settings}:
        return False
    return any(typing.get_origin(kind) in (tuple, Mapping) for kind in (entry.kind, *typing.get_args(entry.kind)))


def _joined(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """Return a command line in which a flag with several values that is given again adds its values to the first ones.

    lists: the flags with any number of values.
    """
    words: list[list[str]] = [[]]
    for word in arguments:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--"):
            words[-1].append(word)
        elif name not in lists:
            words.append([word])
        else:
            known = next((group for group in words if group[:1] == [name]), None)
            words = [group for group in words if group is not known] + [known or [name]]
            words[-1] += [value] * bool(equals)
    return [word for group in words for word in group]


def given_fields(arguments: Sequence[str]) -> set[str]:
    """Return the fields whose flags are on a command line."""
    words = [word.partition("=")[0][2:].replace("-", "_") for word in arguments if word.startswith("--")]
    return {*words, *(word.removeprefix("no_") for word in words)}


def flags_of(kind: type, default: Any = None) -> Iterator[Flag]:
    """Yield the flags of an option dataclass. Those of a field that is itself a dataclass take its place.

    Args:
        kind: the dataclass.
        default: an object with the default values. None: the defaults of the fields.
    """
    hints, texts = typing.get_type_hints(kind, include_extras=True), field_texts(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        factory = field.default_factory
        value = field.default if factory is dataclasses.MISSING else factory()
        value = value if default is None else getattr(default, field.name)
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            yield from flags_of(inner, None if value is dataclasses.MISSING else value)
        elif tyro.conf.Suppress not in getattr(hint, "__metadata__", ()):
            owner = next(base for base in kind.__mro__ if field.name in inspect.get_annotations(base))
            yield Flag(field.name, hint, value, field.metadata.get("help") or texts.get(field.name, ""), owner)


@cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class of a module by its name. Empty if the module has no source."""
    with suppress(OSError, TypeError):
        statements = ast.parse(inspect.getsource(sys.modules[module])).body
        return {one.name: one.body for one in statements if isinstance(one, ast.ClassDef)}
    return {}


@cache
def field_texts(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass and of its bases, by name, without line breaks."""
    texts, hints = {}, typing.get_type_hints(kind)
    for base in reversed(kind.__mro__):
        for field, below in itertools.pairwise(_class_bodies(base.__module__).get(base.__qualname__, ())):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    added = [
                        more for value, more in added_values(name).items() if value in typing.get_args(hints[name])
                    ]
                    texts[name] = " ".join([*text.split(), *added])
    return texts


def with_texts(kind: type) -> type:
    """Give the fields of an option dataclass their docstrings as metadata.

    tyro finds the docstrings too, but it keeps their line breaks, which tear help texts and shell completion apart.
    """
    texts, hints = field_texts(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        text = texts.get(field.name) or inspect.getdoc(hints[field.name])  # tyro takes 0.1 s to find that of a group
        field.metadata = {"help": text, **field.metadata}  # type: ignore[assignment]
        if dataclasses.is_dataclass(hints[field.name]):
            with_texts(hints[field.name])
    return kind


def _only(flags: Sequence[Flag]) -> type:
    """Make a dataclass of some flags, for a help text."""
    fields: list[tuple[str, Any, Any]] = []
    for field, kind, default, text, _ in flags:
        settings: dict[str, Any] = {"metadata": {"help": text}, "kw_only": True}
        if default is not dataclasses.MISSING:
            settings["default_factory"] = lambda value=default: value
        fields.append((field, kind, dataclasses.field(**settings)))
    return dataclasses.make_dataclass("Common", fields)
