"""What a process can be told to do in lock-step. `shmppo.lockstep.share.Share.execute` does it."""

from __future__ import annotations

from typing import NamedTuple


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


class RefreshStates(NamedTuple):
    """Recompute the stored recurrent states of the environments of this process with the current weights."""


class Evaluate(NamedTuple):
    """Play the episodes of this process in an evaluation with the current weights."""

    iteration: int
    """Number of finished iterations."""


Command = Collect | ComputeGradients | ReduceGradients | StepOptimizer | RefreshStates | Evaluate
UPDATE_COMMANDS = (ComputeGradients, ReduceGradients, StepOptimizer)
"""Commands of a minibatch. They follow each other within a millisecond."""
