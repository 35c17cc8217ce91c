"""Every exception that this package raises on purpose, and the exit code of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""Exit code after a second Ctrl-C."""


class ShmppoError(Exception):
    """Base class. `exit_code` is what a command returns when it ends with this error."""

    exit_code = 1


class ConfigError(ShmppoError):
    """A configuration that cannot run. The message says what, where, and what to do.

    It is not a ValueError, because the parser of the command line turns those into messages of its own.
    """

    exit_code = 2


class EnvError(ShmppoError):
    """An environment raised, or broke Gymnasium's API.

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
    """A worker raised, died, or stopped answering. The message contains its traceback if there is one.

    Attributes:
        env_index: global index of the environment that raised, if one did.
    """

    def __init__(self, message: str, env_index: int | None = None) -> None:
        super().__init__(message)
        self.env_index = env_index


class TrainingError(ShmppoError):
    """A loss, gradient, or ratio that must not reach the weights. It is raised before the optimizer step.

    Attributes:
        epoch, minibatch: where it was found.
    """

    def __init__(self, epoch: int, minibatch: int, message: str) -> None:
        super().__init__(epoch, minibatch, message)
        self.epoch = epoch
        self.minibatch = minibatch
        self.message = message

    def __str__(self) -> str:
        return f"minibatch {self.minibatch} of epoch {self.epoch}: {self.message}; the weights are unchanged"


class RankError(ShmppoError):
    """The ranks cannot continue together. The message names the ranks that are gone, or that differ."""


def run_command(
    command: Callable[[], object],
    interrupted: str = "interrupted",
    *,
    raised: type[ShmppoError] | tuple[type[ShmppoError], ...] = (),
) -> int:
    """Run the body of a command; print an error as one line.

    Args:
        command: the body.
        interrupted: what to print after a KeyboardInterrupt.
        raised: errors to raise instead of printing them.

    Returns:
        The exit code: 0, the error's own, or 130 after a KeyboardInterrupt.
    """
    try:
        command()
    except raised:
        raise
    except ShmppoError as error:
        # All ranks of a run raise the same ConfigError: print it once for each machine.
        if not isinstance(error, ConfigError) or os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    return 0
