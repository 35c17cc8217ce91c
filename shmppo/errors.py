"""The exceptions of this package, and how a command reports them: text on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator

_CONTROL = re.compile("\x1b\\[[0-9;]*m|[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|create a primitive|start new thread|bad_alloc")
"""What torch, its libraries, and Python say if they get no memory."""
INTERRUPTED = 130
"""Exit code after a KeyboardInterrupt."""


def printable(text: str, keep: str = "") -> str:
    """Return a text without colors, and with the characters escaped that control a terminal or the writing direction.

    keep: characters that stay, for example a newline.
    """
    return _CONTROL.sub(lambda one: one[0] if one[0] in keep else repr(one[0])[1:-1] * (len(one[0]) == 1), text)


class ShmppoError(Exception):
    """Base class of all errors of this package.

    Attributes:
        exit_code: exit code of a command that ends with this error.
        details: traceback of the user's own code, which a command prints above the message; "" if there is none.
    """

    exit_code = 1

    def __init__(self, *arguments: object, details: str = "") -> None:
        super().__init__(*arguments)
        self.details = details

    @property
    def hints(self) -> list[str]:
        """Sentences that help to find the cause or to continue, one per line of the output."""
        notes: list[str] = getattr(self, "__notes__", [])
        return notes

    def add_hint(self, hint: str) -> None:
        """Add a hint. Python 3.11 and later print it below the traceback of the error."""
        self.__notes__ = [*self.hints, hint]


class ConfigError(ShmppoError):
    """The configuration cannot run. The message says what is wrong, where, and what to do.

    The message is one line: control characters in it, which come from values of users and files, are escaped.

    It is not a ValueError, because the command-line parser replaces the message of a ValueError.
    """

    exit_code = 2

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(printable(message), details=details)


class EnvError(ShmppoError):
    """An environment raised an exception or violated the Gymnasium API.

    Attributes:
        env_index: index of the environment within its rank.
    """

    def __init__(self, env_index: int, message: str, *, details: str = "") -> None:
        super().__init__(env_index, message, details=details)
        self.env_index = env_index
        self.message = message

    def __str__(self) -> str:
        return f"environment {self.env_index}: {self.message}"


class WorkerError(ShmppoError):
    """A worker died or stopped responding, or raised an exception outside of an environment."""


class OriginalError(Exception):
    """The exception of a worker as text: the traceback of the user's code."""


class TrainingError(ShmppoError):
    """A loss, gradient, or ratio is invalid, for example not finite. Its minibatch has not changed the weights."""


class RankError(ShmppoError):
    """The ranks cannot continue together. The message names the ranks that are missing or that differ."""


class SaveError(ShmppoError):
    """A file of the run could not be written, for example because the disk is full or the directory was removed."""


class CommandEnd(SystemExit):
    """The end of a command that has only printed something, such as its help text.

    `run_command` reports any other SystemExit as an error, because code of the user has raised it.
    """


def open_standard_streams() -> None:
    """Open standard streams that are closed (>&-). Otherwise the next files would get their numbers and their output.

    Characters that the encoding of the output lacks are written as escape sequences from now on.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_warning(text: str) -> None:
    """Print a warning to stderr."""
    print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print the result of a command to stdout. Control characters except line ends are escaped."""
    print(printable(text, keep="\n"), flush=True)


@contextlib.contextmanager
def output_as_stderr() -> Iterator[None]:
    """Let whatever is printed in the body, also by C code and other processes, appear on stderr.

    So stdout gets only the result of a command.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def print_error(error: ShmppoError) -> None:
    """Print an error to stderr: details and hints first, the message as the last line."""
    lines = "\n".join(filter(None, [error.details, *error.hints, f"error: {error}"]))
    print(printable(lines, keep="\n\t"), file=sys.stderr)


@contextlib.contextmanager
def memory_errors(then: str = "") -> Iterator[None]:
    """Raise a ShmppoError if the body runs out of memory. then: what to do after there is more memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        reason = "".join(str(error).splitlines()[:1]) or "MemoryError"
        raise ShmppoError(
            f"there is not enough memory ({reason}); free memory, or use smaller minibatches, a smaller network, or "
            f"fewer environments{then}"
        ) from error


def run_command(command: Callable[[], int | None], interrupted: str = "interrupted") -> int:
    """Run the body of a command. If it raises an error of this package, print it with `print_error`.

    Args:
        command: the body. It may return another exit code than 0.
        interrupted: what to print after a KeyboardInterrupt.

    Returns:
        What the body returns or 0, the exit code of the error or of `CommandEnd`, 1 after another SystemExit, or 130
        after a KeyboardInterrupt.
    """
    open_standard_streams()
    try:
        with memory_errors():
            return command() or 0
    except ShmppoError as error:
        # All ranks of a run raise the same ConfigError. Print it once per machine.
        if not isinstance(error, ConfigError) or os.environ.get("LOCAL_RANK", "0") == "0":
            print_error(error)
        else:
            time.sleep(1.0)  # when a rank ends, torchrun ends the others, also one that has not printed it yet
        return error.exit_code
    except CommandEnd as end:
        return int(end.code or 0)
    except SystemExit as error:
        print_error(
            ShmppoError(f"the environment, network, or callback called sys.exit({error.code!r}); remove this call")
        )
        return ShmppoError.exit_code
    except BrokenPipeError:  # nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python writes at its end
        return ShmppoError.exit_code
    except OSError as error:  # a path that the user has given, or a limit of the machine
        print_error(ConfigError(str(error)))
        return ConfigError.exit_code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
