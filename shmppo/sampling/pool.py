"""The pool of a run: it collects rollouts, refreshes stored states, computes gradients, and restores environments.

`Pool` does all of this in the learner's process (--workers 0). `WorkerPool` divides the work among worker processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError, ShmppoError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.ppo.device_gradients import DeviceGradients
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.optimizer import Optimizer
from shmppo.sampling.collector import Collector
from shmppo.sampling.evaluation import EvaluationShare
from shmppo.sampling.worker import ActionLog
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


class Pool:
    """Collects rollouts and computes gradients in the learner's process, which steps with one thread.

    Attributes:
        timer: measures the phases of the learner.
        restarts: number of workers that were replaced so far.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        buffers: SharedBuffers,
        actions: ActionLog,
        forget: Callable[[int], None],
    ) -> None:
        """Create a pool that has no environments yet; `start` creates them.

        Args:
            actions: the episodes to restore at the start if its iteration is above 0, and when a worker is replaced.
            forget: called with the index of each environment that could not be restored and begins its next episode.
        """
        self.timer = PhaseTimer()
        self.restarts = 0
        self._config, self._task, self._buffers = config, task, buffers
        self._actions, self._forget = actions, forget
        self._opened = ExitStack()
        self._shards = range(config.shards)

    def start(self, model: ActorCritic) -> None:
        """Wait until every environment has begun its first episode or has been restored.

        Args:
            model: the network that learns.

        Raises:
            EnvError: if an environment raises (without workers).
            WorkerError: if a worker has been replaced too often, or an environment raises in its first episode.
        """
        self.create_gradients(model)
        progress = self._buffers.control.progress[0]
        columns = range(self._config.rows)
        with torch_threads(1), self._hints():
            self._collector = Collector(self._config, self._task, model, self._buffers, columns, progress)
            self._opened.callback(self._collector.close)
            episodes = range(len(self._config.own_eval_episodes))
            self._evaluation = EvaluationShare(self._config, self._task, model, self._buffers, episodes, progress)
            self._opened.callback(self._evaluation.close)
            if not self._actions.iteration:
                self._collector.start()
                return
            for n in self._collector.restore(self._actions.iteration, self._actions.episodes(columns)):
                self._forget(n)

    def create_gradients(self, model: ActorCritic) -> None:
        """Create what computes the learner's shards. `start` does this."""
        source = ShardGradients if self._config.device == "cpu" else DeviceGradients
        self._gradients = source(self._config, self._task.distribution, model, self._buffers)
        self._optimizer = Optimizer(self._config, self._buffers)

    @contextmanager
    def _hints(self) -> Iterator[None]:
        """Add a hint to the failure of an environment."""
        try:
            yield
        except EnvError as error:
            hint_at_skipping(error, self._config)
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return []

    def collect(self, iteration: int) -> tuple[Rollout, CollectTimes]:
        """Collect the rollout of an iteration with the current weights.

        Raises:
            EnvError: if an environment raises (without workers).
            WorkerError: if a worker fails and has been replaced too often.
        """
        began = self.timer.switch("inference")
        with torch_threads(1), self._hints():
            self._collector.collect(iteration, self.timer)
        seconds = self.timer.switch("other") - began
        return self._buffers.rollout, CollectTimes(seconds, np.array([seconds]), 0.0)

    def refresh_states(self) -> float:
        """Recompute the stored recurrent states with the current weights. Return the RMS of their change.

        Raises:
            WorkerError: if a worker fails and has been replaced too often.
        """
        self.timer.switch("inference")
        with torch_threads(1):
            self._collector.refresh_states()
        self.timer.switch("other")
        return self._state_drift()

    def _state_drift(self) -> float:
        squares, count = self._buffers.rollout.state_drift.sum(axis=0)
        return math.sqrt(squares / max(count, 1.0))

    def evaluate(self, iteration: int) -> None:
        """Play the episodes of --eval-every with the current weights, and write the results to the shared buffers.

        Args:
            iteration: number of finished iterations.

        Raises:
            ShmppoError: if an environment raises (without workers).
            WorkerError: if a worker fails and has been replaced too often.
        """
        with torch_threads(1):
            self._evaluation.play(iteration)

    def compute_gradients(self, epoch: int, minibatch: int) -> float:
        """Write the gradients and loss terms of all shards of a minibatch to `ShardResults`.

        Returns:
            Signaling seconds (see `WorkerPool`).

        Raises:
            WorkerError: if a worker fails and has been replaced too often.
        """
        self._gradients.compute(epoch, minibatch, self._shards)
        return 0.0

    def reduce_gradients(self) -> float:
        """Add the gradients of the shards. Returns and raises: as `compute_gradients`."""
        self._optimizer.add_gradients()
        return 0.0

    def step_optimizer(self) -> float:
        """Step the optimizer with the numbers in `OptimizerState`. Return the signaling seconds.

        Raises:
            WorkerError: if a worker fails.
        """
        self._optimizer.step()
        return 0.0

    def close(self, grace: float = 2.0) -> None:
        """End all processes; kill those that still run after `grace` seconds. Safe to call twice and after an error."""
        self._opened.close()


def hint_at_skipping(error: ShmppoError, config: TrainConfig) -> None:
    """Add the hint that episodes with failures can be skipped."""
    if config.env_backend not in ("envpool", "vector") and not config.skip_bad_episodes and not config.agents:
        error.add_hint("To skip episodes whose reset or step fails, add --skip-bad-episodes.")
