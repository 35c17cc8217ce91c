"""The pool of a run: it collects rollouts, refreshes stored states, computes gradients, and restores environments.

`Pool` does all of this in the learner's process (--workers 0). `WorkerPool` divides the work among worker processes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError, ShmppoError
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.ppo.device_gradients import DeviceGradients
from shmppo.ppo.gradients import ShardGradients
from shmppo.sampling.collector import Collector, EpisodeInProgress
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import torch_threads

log = logging.getLogger(__name__)


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
            config: of the run.
            task: the environment and its spaces.
            buffers: the shared memory.
            actions: the episodes to restore at the start if its iteration is above 0, and when a worker is replaced.
            forget: called with the index of each environment that could not be restored and begins its next episode.
        """
        self.timer = PhaseTimer()
        self.restarts = 0
        self._config, self._task, self._buffers = config, task, buffers
        self._actions, self._forget = actions, forget
        self._collector: Collector | None = None
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
        columns = range(self._config.num_envs)
        with torch_threads(1), self._hints():
            collector = Collector(self._config, self._task, model, self._buffers, columns, progress)
            self._collector = collector
            if not self._actions.iteration:
                collector.start()
                return
            for n in collector.restore(self._actions.iteration, self._actions.episodes(columns)):
                self._forget(n)

    def create_gradients(self, model: ActorCritic) -> None:
        """Create what computes the learner's shards. `start` does this."""
        source = ShardGradients if self._config.device == "cpu" else DeviceGradients
        self._gradients = source(self._config, self._task.distribution, model, self._buffers)

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
        assert self._collector is not None
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
        assert self._collector is not None
        self.timer.switch("inference")
        with torch_threads(1):
            self._collector.refresh_states()
        self.timer.switch("other")
        return self._state_drift()

    def _state_drift(self) -> float:
        squares, count = self._buffers.rollout.state_drift.sum(axis=0)
        return math.sqrt(squares / max(count, 1.0))

    def compute_gradients(self, epoch: int, minibatch: int) -> float:
        """Write the gradients and loss terms of all shards of a minibatch to `ShardResults`.

        Returns:
            Signaling seconds (see `WorkerPool`).

        Raises:
            WorkerError: if a worker fails and has been replaced too often.
        """
        self._gradients.compute(epoch, minibatch, self._shards)
        return 0.0

    def close(self, grace: float = 2.0) -> None:
        """End all processes; kill those that still run after `grace` seconds. Safe to call twice and after an error."""
        if self._collector is not None:
            self._collector.close()


def hint_at_skipping(error: ShmppoError, config: TrainConfig) -> None:
    """Add the hint that episodes with failures can be skipped."""
    if config.env_backend != "envpool" and not config.skip_bad_episodes:
        error.add_hint("To skip episodes whose reset or step fails, add --skip-bad-episodes.")


def partition(count: int, parts: int, index: int) -> range:
    """Divide 0 … count − 1 into `parts` contiguous ranges of nearly equal size, and return range `index`."""
    return range(index * count // parts, (index + 1) * count // parts)


class ActionLog:
    """The actions of the episode in progress of every environment, up to the last committed rollout.

    Seed and actions determine an episode, so a replay restores the environment. Workers keep no copy of the log.

    Attributes:
        iteration: number of committed rollouts. The next rollout starts from the carry that this iteration reads.
    """

    def __init__(self, num_envs: int, action_size: int, limit: int) -> None:
        """Create an empty log.

        Args:
            num_envs: N.
            action_size: A.
            limit: the log stores no actions of episodes with more steps.
        """
        self.iteration = 0
        self._limit = limit
        self._action_size = action_size
        self._numbers = [0] * num_envs
        self._began = [1] * num_envs
        self._parts: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs  # steps of the episode in progress, stored or not

    def commit(
        self, actions: np.ndarray, ended: np.ndarray, numbers: np.ndarray, valid_steps: np.ndarray | None = None
    ) -> None:
        """Append a rollout.

        Args:
            actions: [T, N, A], as sampled.
            ended: bool [T, N], whether an episode ended with the step.
            numbers: [N], number of the episode in progress after the rollout.
            valid_steps: [N], number of valid steps of each environment. None: all T.
        """
        steps = len(actions)
        ends = [steps] * len(self._parts) if valid_steps is None else valid_steps.tolist()
        # The step after the last end of an episode; 0 if no episode ended in this rollout.
        begins = np.where(ended.any(axis=0), steps - np.argmax(ended[::-1], axis=0), 0)
        for n, (begin, end) in enumerate(zip(begins.tolist(), ends, strict=True)):
            if begin:
                self._parts[n].clear()
                self._lengths[n] = 0
                self._began[n] = self.iteration + 1
            self._lengths[n] += end - begin
            if self._lengths[n] > self._limit:
                if self._parts[n]:
                    log.info("environment %d: the episode is longer than --replay-limit %d", n, self._limit)
                self._parts[n].clear()
            elif begin < end:
                self._parts[n].append(actions[begin:end, n].copy())
        self._numbers = numbers.tolist()
        self.iteration += 1

    def forget(self, env_index: int) -> None:
        """Drop the episode of an environment that could not be restored and has begun its next episode."""
        self._numbers[env_index] += 1
        self._began[env_index] = self.iteration + 1
        self._parts[env_index].clear()
        self._lengths[env_index] = 0

    def episodes(self, columns: range) -> list[EpisodeInProgress]:
        """Return the episodes in progress of the environments `columns`."""
        return [
            EpisodeInProgress(
                n, self._numbers[n], self._joined(n) if self._lengths[n] <= self._limit else None, self._began[n]
            )
            for n in columns
        ]

    def _joined(self, n: int) -> np.ndarray:
        """Return the stored actions of environment n as one array, [steps, A]."""
        if not self._parts[n]:
            return np.zeros((0, self._action_size), np.float32)
        joined = np.concatenate(self._parts[n])
        self._parts[n] = [joined]
        return joined

    def state(self) -> dict[str, np.ndarray]:
        """Return the log as arrays for a checkpoint. The actions of all environments are concatenated."""
        joined = [self._joined(n) for n in range(len(self._parts))]
        return {
            "numbers": np.array(self._numbers),
            "began": np.array(self._began),
            "lengths": np.array(self._lengths),
            "stored": np.array([len(actions) for actions in joined]),
            "actions": np.concatenate(joined),
        }

    def load(self, state: dict[str, np.ndarray], iteration: int) -> None:
        """Restore what `state` returned, in a run that resumes at `iteration`."""
        self.iteration = iteration
        self._numbers, self._lengths = state["numbers"].tolist(), state["lengths"].tolist()
        self._began = state["began"].tolist()
        ends = np.cumsum(state["stored"])
        self._parts = [[part.copy()] if len(part) else [] for part in np.split(state["actions"], ends[:-1])]
