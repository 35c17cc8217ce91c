"""What the learner's loop needs of the processes that work for it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from shmppo.lockstep.commands import Command
from shmppo.models.actor_critic import ActorCritic
from shmppo.utils.phase_timer import PhaseTimer


class Times(NamedTuple):
    """The time of one iteration, in seconds."""

    phases: np.ndarray
    """[phases], by phase of the learner."""
    collect: float
    """Until the slowest worker had collected its part of the rollout."""
    workers: np.ndarray
    """[W], for which each worker was busy with it. [1] without workers."""
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

    def execute(self, command: Command) -> None:
        """Carry out a command, and wait for all processes.

        Raises:
            EnvError: if an environment raises while its rollout is collected.
            ShmppoError: if an environment raises in an evaluation.
            WorkerError: if a worker has been replaced too often, fails in an optimizer step, or raises anything else.
        """

    def take_times(self) -> Times:
        """Return the times since the last call. The last rollout stays the same until the next one."""

    def close(self, grace: float = 2.0) -> None:
        """End all processes; kill those that still run after `grace` seconds. Safe to call twice and after an error."""
