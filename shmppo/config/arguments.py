"""A check of a command line before it is parsed, so that each mistake gets one sentence that says what to type."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shmppo.config.checks import flag as flag_of
from shmppo.config.checks import nearest, require
from shmppo.config.flag_table import Flag, choices, is_list, value_kind
from shmppo.config.hints import suggestion
from shmppo.errors import ConfigError

NUMBERS = {int: "an integer", float: "a number"}
TRUTH_VALUES = ("true", "false", "yes", "no", "on", "off", "0", "1")


def check_arguments(arguments: Sequence[str], flags: Iterable[Flag], prog: str) -> None:
    """Check the flags of a command line and their values.

    Args:
        arguments: the command line.
        flags: the flags of the command.
        prog: the command, for messages.

    Raises:
        ConfigError: for an unknown flag, a missing or wrong value, or an argument without a flag.
    """
    flags = list(flags)
    known = {spelling: flag for flag in flags for spelling in flag.spellings}
    positional = [flag for flag in flags if flag.positional]
    stray: list[str] = []
    unknown: dict[str, str] = {}  # hints by flag
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not is_flag(word):
            stray.append(word)
            continue
        given, equals, text = word.partition("=")
        name = given.replace("_", "-")
        if name not in known:
            unknown[given] = _hint(given, known, positional, prog)
            while words and not is_flag(words[0]):
                words.pop(0)
            continue
        values = [text] if equals else []
        limit = 1 if known[name].repeated else _most_values(known[name].kind)
        while len(values) < limit and words and not is_flag(words[0]):
            values.append(words.pop(0))
        following = words[0] if words else ""
        _check_values(name, known[name], values, following)
    _refuse_unknown(unknown, prog)
    _check_positional(stray, positional, known, prog)


def given_flags(arguments: Iterable[str]) -> list[str]:
    """Return the flags on a command line, with hyphens and without their values."""
    return [word.partition("=")[0].replace("_", "-") for word in arguments if is_flag(word)]


def is_flag(word: str) -> bool:
    """Whether a word is a flag. Negative numbers and a single hyphen are not."""
    if not word.startswith("-") or word == "-":
        return False
    return not _is_number(word)


def _is_number(text: str, kind: type = float) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _most_values(kind: Any) -> float:
    """Return how many values a flag takes at most."""
    if kind is bool:
        return 0
    return float("inf") if is_list(kind) else 1


def _refuse_unknown(hints: Mapping[str, str], prog: str) -> None:
    """Raise ConfigError if there are unknown flags. hints: what to use instead, by flag."""
    if len(hints) > 1:
        lines = [f"{given}: {hint.lstrip('; ').strip('()') or 'no similar flag'}" for given, hint in hints.items()]
        raise ConfigError(f"there are no flags {', '.join(hints)}; use those named above", details="\n".join(lines))
    for given, hint in hints.items():
        end = "" if hint.startswith(";") else f"; see {prog} --help"
        raise ConfigError(f"there is no flag {given}{hint}{end}")


def _hint(given: str, known: Iterable[str], positional: Sequence[Flag], prog: str) -> str:
    """Return what to use instead of an unknown flag, as the end of a sentence."""
    for argument in positional:
        if given.replace("_", "-").rstrip("s") == flag_of(argument.field).rstrip("s"):
            return f"; name {argument.name} without a flag: {prog} {argument.name}"
    return suggestion(given, list(known))


def _check_values(name: str, flag: Flag, values: Sequence[str], following: str) -> None:
    """Check the values of one flag. following: the next word of the command line."""
    if flag.kind is bool:
        given = values[0] if values else following
        negated = flag_of("no_" + flag.field)
        wrong = bool(values) or following.lower() in TRUTH_VALUES
        require(not wrong, f"{name} takes no value, but {given!r} follows it; write {flag_of(flag.field)} or {negated}")
        return
    needed = flag.repeated or not is_list(flag.kind) or bool(choices(flag.kind))
    if needed and not values:
        example = " or ".join(f"{name} {choice}" for choice in choices(flag.kind)) or f"{name} {flag.metavar}"
        dash = f"; write a value that begins with a hyphen as {name}={following}" if following else ""
        raise ConfigError(f"{name} needs a value: {example}{dash}")
    if types.NoneType in typing.get_args(flag.kind) and list(values) == ["None"]:
        return
    for value in values:
        _check_value(name, flag.kind, value)


def _check_value(name: str, kind: Any, value: str) -> None:
    """Check that one value has the type of its flag."""
    allowed = tuple(map(str, choices(kind)))
    if allowed:
        listed = ", ".join(allowed)
        require(value in allowed, f"{name} is {value!r}{nearest(value, allowed)}; it must be one of {listed}")
        return
    inner = value_kind(kind)
    inner = typing.get_args(inner)[0] if typing.get_origin(inner) is tuple else inner
    if inner not in NUMBERS or _is_number(value, inner):
        return
    whole = _is_number(value) and float(value).is_integer()
    remedy = f"; write {float(value):.0f}" if whole else ""
    raise ConfigError(f"{name} is {value!r}; it must be {NUMBERS[inner]}{remedy}")


def _check_positional(stray: Sequence[str], positional: Sequence[Flag], known: Iterable[str], prog: str) -> None:
    """Check the words that do not belong to a flag."""
    if any(is_list(flag.kind) for flag in positional):
        return
    for missing in positional[len(stray) :]:
        meaning = missing.text[0].rstrip(".")
        raise ConfigError(f"{prog} needs {missing.name}: {meaning[0].lower()}{meaning[1:]}")
    for unexpected in stray[len(positional) :]:
        raise ConfigError(_unexpected(unexpected, known, prog))


def _unexpected(word: str, known: Iterable[str], prog: str) -> str:
    """Return the message for a word that belongs to no flag."""
    name, equals, value = word.partition("=")
    flag = "--" + name.replace("_", "-")
    if flag in known:
        example = f"{flag} {value}" if equals else flag
        return f"{word} is not a flag; write it with two hyphens: {example}"
    hint = suggestion(flag, list(known))
    if equals and hint.startswith(";"):
        return f"{word} is not a flag{hint}"
    example = f", for example --env {word}" if "--env" in known else ""
    return f"{word} does not belong to a flag; write a flag before it{example} (see {prog} --help)"
