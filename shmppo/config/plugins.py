"""Objects that a configuration names: `module:attribute` texts and `Name(argument=value)` texts."""

from __future__ import annotations

import ast
import importlib
import types
from functools import partial
from typing import Any

from shmppo.config.checks import require
from shmppo.errors import ConfigError
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback


def load_object(name: str, where: str, base: type = object) -> Any:
    """Import the class or function that `module:attribute` names, and check it with `check_callable`.

    Args:
        name: the text.
        where: beginning of error messages, for example the flag.
        base: base class that a class must have.

    Raises:
        ConfigError: if there is no such object, if its module raises, or if it cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    complete = bool(module_name and attribute)
    require(complete, f"{where} {name} is not of the form module:attribute; name a class or function like that")
    found = getattr(import_module(module_name, f"{where} {name}"), attribute, None)
    require(found is not None, f"{where} {name}: module {module_name} has no {attribute}; name one that exists")
    check_callable(found, f"{where} {name}", base)
    return found


def import_module(name: str, where: str) -> types.ModuleType:
    """Import a module of the user.

    Args:
        where: beginning of error messages, for example the flag and its value.

    Raises:
        ConfigError: if there is no such module, or if it raises.
    """
    require(
        all(name.split(".")) and "/" not in name,
        f"{where} is not of the form module:attribute; name the module and run in the directory that contains it",
    )
    try:
        return importlib.import_module(name)
    except FAILURES as error:
        reraise_ctrl_c(error)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{where}: there is no module {missing}; install it, or run in the directory that contains it"
            ) from error
        raise ConfigError(
            f"{where}: the import of {name} raised {describe_error(error)}; correct the module",
            details=user_traceback(error),
        ) from error


def check_callable(found: Any, where: str, base: type = object) -> None:
    """Check an object that will be called: a class, a Python function, or a `functools.partial` of one.

    Functions that are not written in Python, such as `os.system`, are refused, because they are no factories.

    Args:
        found: the object.
        where: beginning of error messages, for example the flag and its value.
        base: base class that a class must have.

    Raises:
        ConfigError: if it is another object, or a class without this base class.
    """
    while isinstance(found, partial):
        found = found.func
    if isinstance(found, type):
        package = base.__module__.partition(".")[0]
        require(
            issubclass(found, base),
            f"{where} is a class, but not a subclass of {package}'s {base.__name__}; name such a class, or a function "
            "that returns an object of it",
        )
        return
    kind = type(found).__name__
    function = found.__func__ if isinstance(found, types.MethodType) else found
    require(
        isinstance(function, types.FunctionType),
        f"{where} is neither a class nor a Python function, but a {kind}; name one of them",
    )


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
            f"{where} {text} is not of the form Name or Name(argument=value) with literals of Python as values; write "
            'it like "Name(a=1)", or put what it needs into a wrapper of your own'
        ) from error
