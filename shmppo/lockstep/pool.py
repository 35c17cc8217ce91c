"""What the learner can ask of the processes that work for it: the commands, and a pool that carries them out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from shmppo.envs.spec import EnvSpec
from shmppo.models.actor_critic import ActorCritic
from shmppo.utils.phase_timer import PhaseTimer


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


class Evaluate(NamedTuple):
    """Play the episodes of this process in an evaluation with the current weights."""

    iteration: int
    """Number of finished iterations."""


Command = Collect | ComputeGradients | ReduceGradients | StepOptimizer | Evaluate
UPDATE_COMMANDS = (ComputeGradients, ReduceGradients, StepOptimizer)
"""Commands of a minibatch. They follow each other within a millisecond."""


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


class Pool(Protocol):
    """Carries out commands for all environments, shards, and parameters of a rank.

    Attributes:
        timer: measures the phases of the learner.
    """

    timer: PhaseTimer

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced so far."""

    @property
    def changed_values(self) -> set[str]:
        """Sentences about values in modules that differ between the program and its workers."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""

    def start(self, model: ActorCritic) -> None:
        """Wait until every environment has begun its first episode or has been restored.

        Args:
            model: the network that learns.

        Raises:
            EnvError: if an environment raises.
            WorkerError: if a worker has been replaced too often.
        """

    def restart(self, task: EnvSpec) -> None:
        """Make all environments again, and restore the episodes in progress. task: description of the environments."""

    def execute(self, command: Command) -> None:
        """Carry out a command, and wait for all processes.

        Raises:
            EnvError: if an environment raises while its rollout is collected.
            ShmppoError: if an environment raises in an evaluation.
            WorkerError: if a worker has been replaced too often, fails in an optimizer step, or raises anything else.
        """

    def take_times(self) -> Times:
        """Return the times since the last call. Those of a rollout stay the same until the next one is collected."""

    def close(self, grace: float = 2.0) -> None:
        """End all processes; kill those that still run after `grace` seconds. Safe to call twice and after an error."""
