"""What travels between the learner and a worker. Small on purpose: a message is one atomic write to a pipe."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_TEXT = 3000  # characters; with its envelope below PIPE_BUF (4096 bytes on Linux)


@dataclass(frozen=True)
class Collect:
    """Sample one rollout with the weights of `version` into the columns that the worker owns."""

    version: int
    iteration: int


@dataclass(frozen=True)
class Gradients:
    """Compute the gradients of the shards that the worker owns, with the weights of `version`."""

    version: int
    epoch: int
    minibatch: int


@dataclass(frozen=True)
class Refresh:
    """Bring the stored states of the worker's own columns up to date with the weights of `version`."""

    version: int


@dataclass(frozen=True)
class Stop:
    """End the process."""


@dataclass(frozen=True)
class Ready:
    """The worker's environments are made, and where they have to be."""

    lost: tuple[int, ...] = ()
    """Global indices of environments that a replay did not bring back; their next episode was begun."""


@dataclass(frozen=True)
class Done:
    """The command of this version is carried out."""

    version: int


@dataclass(frozen=True)
class Failed:
    """The worker raised; it ends after this message."""

    traceback: str
    env_index: int | None
    """Global index of the environment that raised, if one did."""


Command = Collect | Gradients | Refresh | Stop
Report = Ready | Done | Failed
