"""What the learner can ask of the processes that work for it, and the times that they take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Collect(NamedTuple):
    """Collect one rollout of the environments of this process."""

    iteration: int


class ComputeGradients(NamedTuple):
    """Compute the gradients of a minibatch for the shards of this process."""

    epoch: int
    minibatch: int


class ReduceGradients(NamedTuple):
    """Add the gradients of all shards, for the parameters of this process."""


class StepOptimizer(NamedTuple):
    """Step the optimizer, for the parameters of this process. It cannot be repeated."""


class Update(NamedTuple):
    """Carry out the minibatches begin … end − 1 of all epochs on a device: gradients and optimizer steps."""

    begin: int
    end: int
    first_limit: float
    """Limit of |log ratio| in the first minibatch of the update."""


class Evaluate(NamedTuple):
    """Play the episodes of this process in an evaluation with the current weights."""

    iteration: int
    """Number of finished iterations."""


Command = Collect | ComputeGradients | ReduceGradients | StepOptimizer | Update | Evaluate
UPDATE_COMMANDS = (ComputeGradients, ReduceGradients, StepOptimizer)
"""Commands of a minibatch. They follow each other within a millisecond."""
SOON_FOLLOWED = (Collect, *UPDATE_COMMANDS)
"""Commands after which the next one usually follows within a few milliseconds."""


class Times(NamedTuple):
    """The time of one iteration, in seconds."""

    phases: np.ndarray
    """[phases], by phase of the learner."""
    collect: float
    """Until the slowest worker had collected its part of the rollout."""
    workers: np.ndarray
    """[W], for which each worker was busy with its part of the rollout. [1] without workers."""
    signaling: float
    """What lock-step itself costs (see `WorkerPool`)."""
