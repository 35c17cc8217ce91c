"""What the learner and a worker tell each other: orders in shared memory (desk.py), the rest through queues.

A message is small on purpose: one atomic write to a pipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LONGEST_TEXT = 3000  # characters; with its envelope below PIPE_BUF (4096 bytes on Linux)


class Collect(NamedTuple):
    """Order: sample one rollout with the weights of `version` into the columns that the worker owns."""

    version: int
    iteration: int


class Gradients(NamedTuple):
    """Order: compute the gradients of the shards that the worker owns, with the weights of `version`."""

    version: int
    epoch: int
    minibatch: int


class Refresh(NamedTuple):
    """Order: bring the stored states of the worker's own columns up to date with the weights of `version`."""

    version: int


@dataclass(frozen=True)
class Ring:
    """Wake up: there is an order, or an answer, in shared memory."""


@dataclass(frozen=True)
class Stop:
    """End the process."""


@dataclass(frozen=True)
class Ready:
    """The worker's environments are made, and where they have to be."""

    lost: tuple[int, ...] = ()
    """Global indices of environments that a replay did not bring back; their next episode was begun."""


@dataclass(frozen=True)
class Failed:
    """The worker raised; it ends after this message."""

    traceback: str
    env_index: int | None
    """Global index of the environment that raised, if one did."""


Order = Collect | Gradients | Refresh
