"""The interface of the processes that collect rollouts, and a pool without processes (--workers 0)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.sampling.action_log import ActionLog
from shmppo.sampling.collector import Collector
from shmppo.sampling.state_refresh import StateRefresh
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import torch_threads


@dataclass(frozen=True)
class CollectTimes:
    """What collecting one rollout took."""

    seconds: float
    """Until the slowest worker had finished."""
    worker_seconds: np.ndarray
    """[W] seconds that each worker was busy ([1] without workers)."""
    sync_seconds: float
    """Seconds spent on signaling alone (see `WorkerPool`)."""


class Pool(Protocol):
    """The processes that collect rollouts."""

    restarts: int
    """Workers replaced so far."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""

    def wait_ready(self) -> None:
        """Return when every environment has begun its first episode. Raises WorkerError."""

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> tuple[Rollout, CollectTimes]:
        """Collect a rollout with the weights of `version`. Raises WorkerError or EnvError."""

    def compute_gradients(
        self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer
    ) -> float:
        """Compute all shards of a minibatch; the learner's part of them is `own`. Returns the seconds of signaling.

        Raises WorkerError.
        """

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        """Recompute the stored states. Returns the root mean square of their change. Raises WorkerError."""

    def pop_lost(self) -> list[int]:
        """Environments that could not be restored since the last call."""

    def close(self, grace: float = 2.0) -> None:
        """End everything that was started, with force after `grace` seconds. Safe to call twice and after an error."""


def partition(count: int, parts: int, index: int) -> range:
    """Part `index` of `count` things that are dealt out in contiguous ranges of nearly equal size."""
    return range(index * count // parts, (index + 1) * count // parts)


def state_drift(rollout: Rollout) -> float:
    """Root mean square change of the stored states in the last refresh."""
    squares, numbers = rollout.state_drift.sum(axis=0)
    return math.sqrt(squares / max(numbers, 1.0))


class InProcessPool:
    """The pool of `--workers 0`: the same collector for all environments, in the learner's process, with one thread."""

    def __init__(
        self, config: TrainConfig, task: Task, model: ActorCritic, buffers: SharedBuffers, actions: ActionLog
    ) -> None:
        self.restarts = 0
        self._lost: list[int] = []
        self._rollout = buffers.rollout
        part = {"low": 0, "high": config.num_envs, "progress": buffers.control.progress[0]}
        with torch_threads(1):
            self._collector = Collector(config, task, model, buffers, **part)
        self._states = StateRefresh(config, task.distribution, model, buffers, **part)
        if actions.iteration:
            self._lost.extend(self._collector.restore(actions.iteration, actions.episodes(range(config.num_envs))))
            for n in self._lost:
                actions.forget(n)
        else:
            self._collector.start()

    @property
    def pids(self) -> list[int]:
        return []

    def wait_ready(self) -> None:
        pass

    def collect(self, version: int, iteration: int, timer: PhaseTimer) -> tuple[Rollout, CollectTimes]:
        began = timer.switch("inference")
        with torch_threads(1):
            self._collector.collect(iteration, timer)
        seconds = timer.switch("other") - began
        return self._rollout, CollectTimes(seconds, np.array([seconds]), 0.0)

    def compute_gradients(
        self, version: int, epoch: int, minibatch: int, own: Callable[[], None], timer: PhaseTimer
    ) -> float:
        raise RuntimeError("there are no workers to compute gradients")

    def refresh_states(self, version: int, timer: PhaseTimer) -> float:
        timer.switch("inference")
        with torch_threads(1):
            self._states.refresh()
        timer.switch("other")
        return state_drift(self._rollout)

    def pop_lost(self) -> list[int]:
        lost, self._lost = self._lost, []
        return lost

    def close(self, grace: float = 2.0) -> None:
        self._collector.close()
