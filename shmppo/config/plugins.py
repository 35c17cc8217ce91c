"""Objects that a configuration names: `module:attribute` texts and `Name(argument=value)` texts."""

from __future__ import annotations

import ast
import importlib
from typing import Any

from shmppo.errors import ConfigError


def load_object(name: str, where: str) -> Any:
    """Import the object that `module:attribute` names.

    Args:
        name: the text.
        where: beginning of error messages, for example the flag.

    Raises:
        ConfigError: if there is no such object.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{where} {name} has no colon; name it as module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{where} {name}: {error}; install {module_name}, or run in the directory that contains it"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ConfigError(
            f"{where} {name}: module {module_name} has no {attribute}; name an attribute that exists"
        ) from error


def parse_call(text: str, where: str) -> tuple[str, dict[str, Any]]:
    """Parse `Name` or `Name(a=1, b="x")` into the name and its keyword arguments. The text is not executed.

    Args:
        text: the text. Argument values are Python literals.
        where: beginning of error messages, for example the flag.

    Raises:
        ConfigError: if the text has another form.
    """
    name, parenthesis, rest = text.partition("(")
    try:
        call = ast.parse(f"f({rest}" if parenthesis else "f()", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f'{where} {text} is not of the form Name or Name(argument=value); write it like "Name(a=1)"'
        ) from error
