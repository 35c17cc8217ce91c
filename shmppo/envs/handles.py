"""Handles: each belongs to one environment of the run and knows its index and the number of its current episode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np

from shmppo.errors import ConfigError, EnvError
from shmppo.utils.user_code import FAILURES, describe_error, reraise_ctrl_c, user_traceback

FIRST_INDEX = 2**40
"""Index of the environment of an evaluation's episode 0. Training uses smaller indices, and so other random streams."""


def name_of(env_index: int) -> str:
    """Return the name of an environment, or of an episode of an evaluation, for log messages."""
    return f"environment {env_index}" if env_index < FIRST_INDEX else f"evaluation episode {env_index - FIRST_INDEX}"


@contextmanager
def as_env_error(env_index: int) -> Iterator[None]:
    """Raise EnvError, with this index, for what the code of an environment raises while it is created."""
    try:
        yield
    except ConfigError:
        raise
    except FAILURES as error:
        reraise_ctrl_c(error)
        details = user_traceback(error)
        raise EnvError(env_index, f"could not be made: {describe_error(error)}", details=details) from error


class EnvHandle:
    """One environment of the run, identified by its index, and the number of its current episode."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.episode = 0

    def save_snapshot(self, snapshot: np.ndarray) -> None:
        """Write a snapshot of the environment, uint8 [bytes]. Does nothing if it has no snapshots."""


class RenderedHandle(EnvHandle):
    """A handle of an environment that can be rendered.

    Attributes:
        env: the environment with its wrappers.
    """

    env: gymnasium.Env

    @property
    def frames_per_second(self) -> float:
        """Frame rate at which a video with one frame per step shows the environment at its normal speed."""
        return float(self.env.metadata.get("render_fps") or 30)
