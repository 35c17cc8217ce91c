"""What a process can be told to do in lock-step. `shmppo.lockstep.share.Share.execute` does it."""

from __future__ import annotations

from typing import NamedTuple


class Collect(NamedTuple):
    """Collect one rollout of the own environments."""

    iteration: int


class ComputeGradients(NamedTuple):
    """Compute the gradients of the own shards of a minibatch."""

    epoch: int
    minibatch: int


class ReduceGradients(NamedTuple):
    """Add the gradients of all shards, for the own part of the parameters."""


class StepOptimizer(NamedTuple):
    """Step the optimizer, for the own part of the parameters. It cannot be repeated."""


class RefreshStates(NamedTuple):
    """Recompute the stored recurrent states of the own environments with the current weights."""


class Evaluate(NamedTuple):
    """Play the own episodes of an evaluation with the current weights."""

    iteration: int
    """Number of finished iterations."""


Command = Collect | ComputeGradients | ReduceGradients | StepOptimizer | RefreshStates | Evaluate
