"""The exceptions of this package, and the exit code that each gives a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""Exit code after a KeyboardInterrupt."""


class ShmppoError(Exception):
    """Base class of all errors of this package.

    Attributes:
        exit_code: exit code of a command that ends with this error.
    """

    exit_code = 1


class ConfigError(ShmppoError):
    """The configuration cannot run. The message says what is wrong, where, and what to do.

    It is not a ValueError, because the command-line parser replaces the message of a ValueError.
    """

    exit_code = 2


class EnvError(ShmppoError):
    """An environment raised an exception or violated the Gymnasium API.

    Attributes:
        env_index: global index of the environment.
    """

    def __init__(self, env_index: int, message: str) -> None:
        super().__init__(env_index, message)
        self.env_index = env_index
        self.message = message

    def __str__(self) -> str:
        return f"environment {self.env_index}: {self.message}"


class WorkerError(ShmppoError):
    """A worker raised an exception, died, or stopped responding. The message contains its traceback if there is one.

    Attributes:
        env_index: global index of the environment that caused the error, or None.
    """

    def __init__(self, message: str, env_index: int | None = None) -> None:
        super().__init__(message)
        self.env_index = env_index


class TrainingError(ShmppoError):
    """A loss, gradient, or ratio is invalid, for example not finite. Its minibatch has not changed the weights.

    Attributes:
        epoch, minibatch: indices of the minibatch that has the invalid value.
    """

    def __init__(self, epoch: int, minibatch: int, message: str) -> None:
        super().__init__(epoch, minibatch, message)
        self.epoch = epoch
        self.minibatch = minibatch
        self.message = message

    def __str__(self) -> str:
        where = f"minibatch {self.minibatch} of epoch {self.epoch}"
        return f"{where}: {self.message}; this minibatch has not changed the weights"


class RankError(ShmppoError):
    """The ranks cannot continue together. The message names the ranks that are missing or that differ."""


def run_command(
    command: Callable[[], object],
    interrupted: str = "interrupted",
    *,
    raised: type[ShmppoError] | tuple[type[ShmppoError], ...] = (),
) -> int:
    """Run the body of a command, and print an error as one line.

    Args:
        command: the body.
        interrupted: what to print after a KeyboardInterrupt.
        raised: types of errors to raise instead of printing them.

    Returns:
        0 on success, the exit code of the error, or 130 after a KeyboardInterrupt.
    """
    try:
        command()
    except raised:
        raise
    except ShmppoError as error:
        # All ranks of a run raise the same ConfigError. Print it once per machine.
        if not isinstance(error, ConfigError) or os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    return 0
