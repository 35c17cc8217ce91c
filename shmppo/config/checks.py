"""Checks of option values, with error messages that name the flag and its value."""

from __future__ import annotations

import contextlib
import difflib
import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from shmppo.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` is true."""
    if not condition:
        raise ConfigError(message)


def store_as_json(options: Any, name: str) -> None:
    """Replace the value of a field by what JSON keeps of it: np.float64 becomes float.

    Raises:
        ConfigError: if JSON cannot keep it, or keeps another value.
    """
    value, rule = getattr(options, name), "its values must be finite numbers, text, lists, or mappings of them"
    message = f"{flag(name)} is {shown(value)}; {rule}"
    try:
        plain = json.loads(json.dumps(value, allow_nan=False, default=_number))
    except (TypeError, ValueError) as error:
        raise ConfigError(message) from error
    require(plain == value, message)
    object.__setattr__(options, name, plain)


def _number(value: Any) -> Any:
    """Convert a number of NumPy, which this module does not import, to Python's own."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(type(value).__name__)


def shown(value: Any) -> str:
    """Return a value as one line of at most 200 characters, for an error message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def integer(text: str) -> int:
    """Return the integer that a text such as 16 or 1e6 stands for. Raises ValueError if it is none."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise ValueError(f"{text} is not an integer")


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def flag_with_value(name: str, value: Any) -> str:
    """Return a field as it is written on the command line, for example "--encoder-sizes 64 64"."""
    if isinstance(value, bool):
        return flag(name) if value else flag(f"no_{name}")
    if isinstance(value, Mapping):
        value = tuple(f"{key}={json.dumps(item)}" for key, item in value.items())
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return " ".join([flag(name), *(shlex.quote(str(part)) for part in parts)])


def flags_with_values(fields: Mapping[str, Any]) -> list[str]:
    """Return the flags that set fields of a configuration, as words of a command line."""
    return shlex.split(" ".join(flag_with_value(name, value) for name, value in fields.items()))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name most similar to `name`, or an empty string if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
