"""Exceptions of the user's code: which of them are failures, and how an error message shows them."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from shmppo.errors import ConfigError
from shmppo.utils.files import short_path

FAILURES = (Exception, SystemExit, KeyboardInterrupt)
"""What code of the user may raise. Call `reraise_ctrl_c` first if one of these is caught."""
_INTERNAL = ("shmppo", "gymnasium", "multiprocessing", "torch", "importlib")
"""Packages whose frames do not help to find an error in the user's code."""
_MAX_TEXT = 300  # characters of an exception in a message


def reraise_ctrl_c(error: BaseException) -> None:
    """Raise a KeyboardInterrupt again if Ctrl-C caused it. Return if the user's code itself has raised `error`."""
    if not isinstance(error, KeyboardInterrupt):
        return
    modules = [module for _, module in _frames(error)]
    by_handler = modules[-1:] == ["shmppo.utils.signals"]
    if by_handler or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


@contextmanager
def as_config_error(what: str, advice: str) -> Iterator[None]:
    """Raise a ConfigError for an exception of the user's code, for example "WHAT raised ValueError('x')ADVICE".

    Raises:
        ConfigError: with the traceback of the user's code as details.
    """
    try:
        yield
    except FAILURES as error:
        reraise_ctrl_c(error)
        raise ConfigError(f"{what} raised {describe_error(error)}{advice}", details=user_traceback(error)) from error


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # ValueError: its arguments are not known
        return False
    return True


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name. Empty if they are not known."""
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(function).parameters
    return {}


def main_is_importable() -> bool:
    """Whether other processes can import the main module: yes for a script, no for a notebook or standard input."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")


def is_importing_main() -> bool:
    """Whether this process is a new worker that imports the main script. A script without a guard then runs again."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def user_traceback(error: BaseException) -> str:
    """Format the traceback of an exception without the frames of this package and of the libraries below it.

    If no other frame is left, the frame of a library that has raised stays.

    Returns:
        The text. "" if there are only frames of this package, and for sys.exit and KeyboardInterrupt.
    """
    if not isinstance(error, Exception) or not _user_frames(error):
        return ""
    formatted = traceback.TracebackException.from_exception(error)
    _keep_user_frames(formatted, error)
    return "".join(formatted.format()).rstrip()


def _keep_user_frames(formatted: traceback.TracebackException | None, error: BaseException | None) -> None:
    """Remove frames from an exception, its cause, and its context."""
    if formatted is None or error is None:
        return
    formatted.stack = traceback.StackSummary.extract(iter(_user_frames(error)))
    _keep_user_frames(formatted.__cause__, error.__cause__)
    _keep_user_frames(formatted.__context__, error.__context__)


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line: its repr, the line that raised it, and the source of this line if needed.

    Exceptions without a text, such as a bare assert, need the source.
    """
    text = " ".join(repr(error).split())
    text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
    frames = _user_frames(error)
    if not frames:
        return text
    last = traceback.StackSummary.extract(iter(frames[-1:]))[0]
    source = f" ({last.line})" if last.line and text.endswith(("()", "('')")) else ""
    return f"{text} at {short_path(last.filename)}:{last.lineno}{source}"


def _frames(error: BaseException) -> list[tuple[tuple[FrameType, int], str]]:
    """Return the frames of an exception, each with its line number, and with the name of the module that it runs."""
    frames = traceback.walk_tb(error.__traceback__)
    return [(frame, str(frame[0].f_globals.get("__name__", ""))) for frame in frames]


def _user_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames outside of the internal packages. If there is none, return that of a library that raised."""
    packages = [(frame, module.partition(".")[0]) for frame, module in _frames(error)]
    own = [frame for frame, package in packages if package not in _INTERNAL]
    last = [one for one in packages if one[1] != "importlib"][-1:]
    return own or [frame for frame, package in last if package != "shmppo"]
