"""What one process does in each phase of lock-step.

A worker, the learner beside its workers, and a learner without workers do the same things for another part of the work.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.lockstep.commands import (
    Collect,
    Command,
    ComputeGradients,
    Evaluate,
    ReduceGradients,
    RefreshStates,
    StepOptimizer,
)
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.device_gradients import DeviceGradients
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.optimizer import Optimizer
from shmppo.sampling.collector import Collector, EpisodeInProgress
from shmppo.sampling.evaluation import EvaluationShare
from shmppo.utils.partition import partition
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import set_numeric_modes

PHASE_OF: dict[type[Command], str] = {
    Collect: "inference",
    RefreshStates: "inference",
    Evaluate: "evaluation",
    ComputeGradients: "gradient",
    ReduceGradients: "reduce",
    StepOptimizer: "optimizer",
}
"""The phase in which a command begins."""


class Part(NamedTuple):
    """The part of the work that one process does. Some parts may be empty."""

    columns: range
    """Environments that it steps."""
    episodes: range
    """Episodes that it plays in an evaluation, among those of its rank."""
    shards: range
    """Shards of each minibatch."""
    sums: tuple[int, int] = (0, 1)
    """Which of how many parts of the gradient it adds."""
    steps: tuple[int, int] = (0, 1)
    """Which of how many parts of the parameters it steps."""
    row: int | None = 0
    """Its row of `Control.progress`. None: nobody watches its progress."""

    @classmethod
    def whole(cls, config: TrainConfig) -> Part:
        """Return the part of a learner without workers."""
        return cls(range(config.rows), range(len(config.own_eval_episodes)), range(config.shards))

    @classmethod
    def of_worker(cls, config: TrainConfig, index: int) -> Part:
        """Return the part of a worker. In an update, the learner does the part of worker 0."""
        workers = config.num_workers
        episodes = partition(len(config.own_eval_episodes), workers, index)
        shards = partition(config.shards, workers, index) if config.sharded and index else range(0)
        return cls(config.columns(index), episodes, shards, (index, workers), (index, workers), index)


class Share:
    """Carries out commands for a part of the work. Nothing else in a run executes a command.

    Attributes:
        timer: measures the phases of this process.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        model: ActorCritic,
        buffers: SharedBuffers,
        part: Part,
        timer: PhaseTimer,
    ) -> None:
        """Allocate the memory, and create the environments.

        Args:
            model: the network that learns; its parameters are views of the shared weights.

        Raises:
            EnvError: if an environment cannot be created.
        """
        self.timer = timer
        self._part = part
        progress = np.zeros(2, np.int64) if part.row is None else buffers.control.progress[part.row]
        self._sum, self._step = Optimizer(config, buffers, *part.sums), Optimizer(config, buffers, *part.steps)
        self._gradients: ShardGradients | None = None  # without shards
        if part.shards and config.device == "cpu":
            self._gradients = ShardGradients(config, task.distribution, model, buffers, progress=progress[1:])
        elif part.shards:
            self._gradients = DeviceGradients(config, task.distribution, model, buffers)
        self._opened = ExitStack()
        if part.columns:
            self._collector = Collector(config, task, model, buffers, part.columns, progress)
            self._opened.callback(self._collector.close)
            self._evaluation = EvaluationShare(config, task, model, buffers, part.episodes, progress)
            self._opened.callback(self._evaluation.close)

    def begin(self, iteration: int, episodes: list[EpisodeInProgress] | None) -> tuple[int, ...]:
        """Begin the first episode of every environment, or restore the episodes in progress.

        Args:
            iteration: the iteration that is collected next.
            episodes: the episodes to restore, as they were before `iteration`. None at the start of a run.

        Returns:
            Indices of the environments that could not be restored. They have begun their next episode.

        Raises:
            EnvError: if an environment raises.
        """
        set_numeric_modes()
        if not self._part.columns:
            return ()
        if episodes is not None:
            return self._collector.restore(iteration, episodes)
        self._collector.start()
        return ()

    def execute(self, command: Command) -> tuple[float, float]:
        """Carry out a command, with one thread and in full precision.

        Returns:
            When it began and ended, in seconds of the monotonic clock.

        Raises:
            EnvError: if an environment raises while its rollout is collected.
            ShmppoError: if an environment raises in an evaluation.
        """
        began = self.timer.switch(PHASE_OF[type(command)])
        set_numeric_modes()  # the code of an environment or a callback may have changed them
        match command:
            case ComputeGradients(epoch, minibatch):
                if self._gradients is not None:
                    self._gradients.compute(epoch, minibatch, self._part.shards)
            case ReduceGradients():
                self._sum.add_gradients()
            case StepOptimizer():
                self._step.step()
            case RefreshStates():
                self._collector.refresh_states()
            case Collect(iteration):
                self._collector.collect(iteration, self.timer)
                set_numeric_modes()  # for the learner without workers
            case Evaluate(iteration):
                self._evaluation.play(iteration)
                set_numeric_modes()
        return began, self.timer.switch("other")

    def close(self) -> None:
        """Close the environments. Safe to call twice."""
        self._opened.close()
