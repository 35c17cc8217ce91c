"""The interface of a pool of workers, and the pool of `--workers 0`, which has no processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError, ShmppoError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.collector import Collector
from shmppo.sampling.state_refresh import StateRefresh
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import torch_threads


@dataclass(frozen=True)
class CollectTimes:
    """The time that the collection of one rollout took."""

    seconds: float
    """Seconds until the slowest worker had finished."""
    worker_seconds: np.ndarray
    """[W], seconds for which each worker was busy. [1] without workers."""
    sync_seconds: float
    """Signaling seconds (see `WorkerPool`)."""


class Pool(Protocol):
    """Collects rollouts and, with workers, computes gradients. All processes run in lock-step.

    Methods that wait for workers raise WorkerError if a worker fails and is not replaced. Without workers, `collect`
    raises EnvError if an environment raises.
    """

    restarts: int
    """Number of workers that were replaced so far."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""

    def wait_ready(self) -> None:
        """Wait until every environment has begun its first episode or has been restored."""

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> tuple[Rollout, CollectTimes]:
        """Collect one rollout.

        Args:
            version: version of the weights to act with.
            iteration: of the rollout.
            timer: gets the phases of the workers, as a mean over workers.
        """

    def compute_gradients(
        self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer
    ) -> float:
        """Compute the gradients of all shards of a minibatch.

        Args:
            version: version of the weights.
            epoch: index of the epoch.
            minibatch: index of the minibatch in the epoch.
            own: computes the learner's part of the shards. It is called while the workers compute theirs.
            timer: of the learner.

        Returns:
            Signaling seconds.
        """

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        """Recompute the stored recurrent states with the weights of `version`.

        Returns:
            Root mean square of their change.
        """

    def pop_lost(self) -> list[int]:
        """Return the indices of the environments that could not be restored since the last call."""

    def close(self, grace: float = 2.0) -> None:
        """End all processes; kill those that still run after `grace` seconds. Safe to call twice and after an error."""


def hint_at_skipping(error: ShmppoError, config: TrainConfig) -> None:
    """Add the hint that episodes with failures can be skipped."""
    if config.env_backend != "envpool" and not config.skip_bad_episodes:
        error.add_hint("To skip episodes whose reset or step fails, add --skip-bad-episodes.")


def partition(count: int, parts: int, index: int) -> range:
    """Divide 0 … count − 1 into `parts` contiguous ranges of nearly equal size, and return range `index`."""
    return range(index * count // parts, (index + 1) * count // parts)


def state_drift(rollout: Rollout) -> float:
    """Return the root mean square change of the stored states in the last refresh."""
    squares, count = rollout.state_drift.sum(axis=0)
    return math.sqrt(squares / max(count, 1.0))


class InProcessPool:
    """The pool of `--workers 0`: one collector for all environments, in the learner's process, with one thread."""

    def __init__(
        self, config: TrainConfig, task: Task, model: ActorCritic, buffers: SharedBuffers, actions: ActionLog
    ) -> None:
        """Create the environments, and begin their episodes or restore those of `actions`.

        Args:
            config: of the run.
            task: description of the environment.
            model: the network that learns.
            buffers: the shared buffers.
            actions: the episodes to restore, if its iteration is above 0.

        Raises:
            EnvError: if an environment raises.
        """
        self.restarts = 0
        self._config = config
        self._lost: list[int] = []
        self._rollout = buffers.rollout
        env_range = {"low": 0, "high": config.num_envs, "progress": buffers.control.progress[0]}
        with torch_threads(1):
            self._collector = Collector(config, task, model, buffers, **env_range)
        self._state_refresh = StateRefresh(config, task.distribution, model, buffers, **env_range)
        with self._hints():
            self._begin(actions)

    def _begin(self, actions: ActionLog) -> None:
        """Begin the first episodes, or restore those of `actions`."""
        if not actions.iteration:
            self._collector.start()
            return
        episodes = actions.episodes(range(self._config.num_envs))
        self._lost.extend(self._collector.restore(actions.iteration, episodes))
        for n in self._lost:
            actions.forget(n)

    @contextmanager
    def _hints(self) -> Iterator[None]:
        """Add hints to the failure of an environment."""
        try:
            yield
        except EnvError as error:
            hint_at_skipping(error, self._config)
            raise

    @property
    def pids(self) -> list[int]:
        """An empty list."""
        return []

    def wait_ready(self) -> None:
        """Do nothing: the environments are ready after construction."""

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> tuple[Rollout, CollectTimes]:
        """See `Pool.collect`."""
        began = timer.switch("inference")
        with torch_threads(1), self._hints():
            self._collector.collect(iteration, timer)
        seconds = timer.switch("other") - began
        return self._rollout, CollectTimes(seconds, np.array([seconds]), 0.0)

    def compute_gradients(
        self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer
    ) -> float:
        """Raise RuntimeError: without workers, the learner computes all gradients itself."""
        raise RuntimeError("there are no workers to compute gradients")

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        """See `Pool.refresh_states`."""
        timer.switch("inference")
        with torch_threads(1):
            self._state_refresh.refresh()
        timer.switch("other")
        return state_drift(self._rollout)

    def pop_lost(self) -> list[int]:
        """See `Pool.pop_lost`."""
        lost, self._lost = self._lost, []
        return lost

    def close(self, grace: float = 2.0) -> None:
        """Close the environments."""
        self._collector.close()
