"""What a user names in a configuration: objects as `module:attribute`, calls as `Name(argument=value)`."""

from __future__ import annotations

import ast
import importlib
from typing import Any

from shmppo.errors import ConfigError


def load_object(name: str, where: str) -> Any:
    """The object that `module:attribute` names. Raises ConfigError, beginning with `where`, if there is none."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"{where} {name}: name it as module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{where} {name}: {error}; install it, or run where {module_name} is found") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ConfigError(f"{where} {name}: module {module_name} has no {attribute}; name what it has") from error


def parse_call(text: str, where: str) -> tuple[str, dict[str, Any]]:
    """`Name` or `Name(a=1, b="x")` as the name and its keyword arguments, which are literals.

    Raises:
        ConfigError: beginning with `where`, for anything else; nothing in the text is executed.
    """
    name, parenthesis, rest = text.partition("(")
    try:
        call = ast.parse(f"f({rest}" if parenthesis else "f()", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f'{where} {text}: write it as Name or as Name(argument=value), such as "Name(a=1)"'
        ) from error
