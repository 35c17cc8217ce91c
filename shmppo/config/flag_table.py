"""The flags of the commands as data: names, values, defaults, and texts, read from the option dataclasses.

The help texts, the hints for wrong flags, and the flag reference of the documentation use this table.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tyro

from shmppo.config.checks import flag

METAVARS = {
    "actor_obs": "KEY",
    "checkpoint": "{last,best,N,FILE}",
    "config": "FILE",
    "critic_obs": "KEY",
    "env_schedule": "MODULE:FUNCTION",
    "init_from": "RUN_DIR",
    "out": "FILE",
    "preset": "NAME",
    "resume": "RUN_DIR",
    "run_dir": "RUN_DIR",
    "run_dirs": "RUN_DIR",
    "search_dir": "DIR",
    "space": "FILE",
    "storage": "URL",
    "study": "NAME",
    "trust": "MODULE",
    "video": "FILE",
    "wandb_tags": "TAG",
    "wrappers": "WRAPPER",
}
"""Names of the values of some fields. Other texts and paths are named after the last word of the field."""
_ARG = type(tyro.conf.arg())


@dataclass(frozen=True)
class Flag:
    """A flag, or a positional argument, of a command."""

    field: str
    """Name of the field that it sets."""
    name: str
    """How it is written: `--hidden-size`, `--quiet / --no-quiet`, or the metavar of a positional argument."""
    metavar: str
    """What its value looks like, for example INT. Empty for a boolean flag and for a positional argument."""
    text: tuple[str, ...]
    """Sentences of the text, without the default."""
    default: str
    """The default as text. Empty if there is none, or if `default_sentence` explains it."""
    default_sentence: str
    """The sentence that names the default. Empty if the flag is required."""
    kind: Any
    """Type of the value, without annotations for the parser."""
    required: bool
    """Whether a command line without it is refused."""
    positional: bool
    repeated: bool = False
    """Whether a list has one value per flag, and the flag may be given several times."""

    @property
    def help(self) -> str:
        """The whole text with the default at its end."""
        return " ".join(filter(None, (*self.text, self.default_sentence)))

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flags that set the field. A positional argument has none."""
        if self.positional:
            return ()
        own = flag(self.field)
        return (own, flag(f"no_{self.field}")) if self.kind is bool else (own,)


@dataclass(frozen=True)
class Group:
    """Flags about one subject."""

    title: str
    """Name of the subject, for example Optimizer."""
    text: str
    """The first sentence about it."""
    flags: tuple[Flag, ...]


def flag_groups(kind: type, default: Any = None) -> list[Group]:
    """Return the flags of an option dataclass, grouped by the class that defines them.

    Args:
        kind: the dataclass. The groups of a field that is itself a dataclass come after the others.
        default: an object with the default values. None: the defaults of the fields.

    Returns:
        The groups: fields of `kind` itself, then those of its bases in the order of the fields, then nested ones.
        Groups with required flags come first. The metadata `default_sentence` of a field replaces its own sentence.
    """
    annotations, docs = typing.get_type_hints(kind, include_extras=True), field_docs(kind)
    own: dict[type, list[Flag]] = {kind: []}
    nested: list[Group] = []
    for field in dataclasses.fields(kind):
        value = _default(field) if default is None else getattr(default, field.name)
        inner, extras = _without_annotations(annotations[field.name])
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            nested += flag_groups(inner, None if value is dataclasses.MISSING else value)
        elif tyro.conf.Suppress not in extras:
            found = _flag(field.name, inner, extras, docs.get(field.name, ""), value)
            found = dataclasses.replace(found, **field.metadata)
            own.setdefault(_owner(kind, field.name), []).append(found)
    groups = [_group(owner, flags) for owner, flags in own.items() if flags] + nested
    return sorted(groups, key=lambda group: not any(flag.required for flag in group.flags))


def field_docs(kind: type) -> dict[str, str]:
    """Return the text below each field of a dataclass and of its bases, by name, without line breaks."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if dataclasses.is_dataclass(base) and file is not None:
            docs |= _docs_of_file(Path(file)).get(base.__qualname__, {})
    return docs


@cache
def _docs_of_file(file: Path) -> dict[str, dict[str, str]]:
    """Return the texts below the fields of every class of a module, by class and field."""
    classes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    return {node.name: _docs_of_class(node) for node in classes}


def _docs_of_class(node: ast.ClassDef) -> dict[str, str]:
    """Return the texts below the fields of a class, by field."""
    docs = {}
    for field, below in itertools.pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def _owner(kind: type, name: str) -> type:
    """Return the class that defines a field: `kind` or one of its bases."""
    return next((base for base in kind.__mro__ if name in inspect.get_annotations(base)), kind)


def _group(owner: type, flags: list[Flag]) -> Group:
    title = owner.__name__.removesuffix("Options") if owner.__name__.endswith("Options") else "Flags"
    return Group(title, sentences(inspect.cleandoc(owner.__doc__ or "").split("\n\n")[0])[0], tuple(flags))


def _flag(name: str, kind: Any, extras: tuple[Any, ...], doc: str, value: Any) -> Flag:
    given_help, given_metavar = _setting(extras, "help"), _setting(extras, "metavar")
    parts = sentences(given_help or doc)
    explained = [part.removeprefix("None: ") for part in parts if part.startswith("None: ")]
    default, default_sentence = _default_text(value), ""
    if value is None:
        # The text says what None means, so that the word None does not appear.
        default = ""
        parts = [part for part in parts if not part.startswith("None: ")]
        default_sentence = f"Default: {explained[0]}" if explained else ""
    elif value is not dataclasses.MISSING:
        default_sentence = f"Default: {default}."
    positional = tyro.conf.Positional in extras
    repeated = tyro.conf.UseAppendAction in extras
    metavar = "" if kind is bool else given_metavar or _metavar(name, typing.get_args(kind)[0] if repeated else kind)
    written = flag(name) if kind is not bool else f"{flag(name)} / {flag('no_' + name)}"
    return Flag(
        field=name,
        name=metavar.strip("[]") if positional else written,
        metavar="" if positional else metavar,
        text=tuple(parts),
        default=default,
        default_sentence=default_sentence,
        kind=kind,
        required=value is dataclasses.MISSING,
        positional=positional,
        repeated=repeated,
    )


def _setting(extras: tuple[Any, ...], name: str) -> str | None:
    """Return what `tyro.conf.arg` sets among the annotations of a field, or None."""
    return next((getattr(extra, name) for extra in extras if isinstance(extra, _ARG)), None)


def sentences(text: str) -> list[str]:
    """Split a text into sentences. A text without any has one that is empty."""
    return re.split(r"(?<=[.!?])\s+", " ".join(text.split()))


def _without_annotations(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split `Annotated[T, …]` into T and the annotations."""
    if typing.get_origin(annotation) is typing.Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _default_text(value: Any) -> str:
    """Return a value as the command line writes it. Empty for MISSING."""
    if value is dataclasses.MISSING:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={json.dumps(part)}" for key, part in value.items()) or "none"
    if isinstance(value, tuple):
        return " ".join(map(_default_text, value)) or "none"
    return str(value)


def value_kind(kind: Any) -> Any:
    """Return the type of a value other than None: `int | None` becomes int."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def is_list(kind: Any) -> bool:
    """Whether a flag of this type takes any number of values."""
    return typing.get_origin(value_kind(kind)) in (tuple, Mapping)


def choices(kind: Any) -> tuple[Any, ...]:
    """Return the values that a flag of this type, or each of its values, can have. Empty if they are not listed."""
    inner = value_kind(kind)
    inner = typing.get_args(inner)[0] if typing.get_origin(inner) is tuple else inner
    return typing.get_args(inner) if typing.get_origin(inner) is typing.Literal else ()


def _metavar(name: str, kind: Any) -> str:
    """Return what a value of the type looks like."""
    inner = value_kind(kind)
    if typing.get_origin(inner) is Mapping:
        return "[KEY=VALUE ...]"
    if typing.get_origin(inner) is tuple:
        return f"[{_metavar(name, typing.get_args(inner)[0])} ...]"
    if choices(inner):
        return "{" + ",".join(map(str, choices(inner))) + "}"
    numbers = {int: "INT", float: "FLOAT"}
    return numbers.get(inner) or METAVARS.get(name) or name.rpartition("_")[2].upper()
