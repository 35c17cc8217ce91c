"""What one process does in each phase of lock-step.

A worker, the learner beside its workers, and a learner without workers do the same things for another part of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import Progress
from shmppo.lockstep.pool import Collect, Command, ComputeGradients, Evaluate, ReduceGradients, StepOptimizer, Update
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.user_module import drawn_by, user_modules
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.device_update import DeviceUpdate
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.optimizer import Optimizer
from shmppo.sampling.collector import Collector, EpisodeInProgress
from shmppo.sampling.evaluation import EvaluationShare
from shmppo.utils.global_generators import NAMES, kept_generators
from shmppo.utils.partition import partition
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import blas_libraries, set_numeric_modes

WORK: dict[type[Command], tuple[str, str]] = {
    Collect: ("inference", "columns"),
    Evaluate: ("evaluation", "episodes"),
    ComputeGradients: ("gradient", "shards"),
    ReduceGradients: ("reduce", "sums"),
    StepOptimizer: ("optimizer", "steps"),
    Update: ("gradient", "shards"),
}
"""For each command: the phase of the timer in which it begins, and the field of `Part` that contains its work."""
MIN_DIVIDED_SUM, MIN_DIVIDED_STEP = 2**18, 2**16
"""Workers help to add the gradients of all shards from this many numbers on, and to step the optimizer from this many
parameters on. With fewer, signaling costs more."""


class Part(NamedTuple):
    """The part of the work that one process does. Any range may be empty."""

    columns: range
    """Environments that it steps."""
    episodes: range
    """Episodes that it plays in an evaluation, among those of its rank."""
    shards: range
    """Shards of each minibatch."""
    sums: range
    """Parameters whose gradients it adds."""
    steps: range
    """Parameters that it steps."""
    row: int | None
    """Its row of `Control.progress`. None: nobody watches its progress."""

    def has(self, kind: type[Command]) -> bool:
        """Whether it contains work of a kind of command."""
        return len(getattr(self, WORK[kind][1])) > 0


def divide_work(config: TrainConfig, parameters: int, workers: int) -> list[Part]:
    """Divide the work among the learner and its workers.

    Workers collect rollouts and play evaluations. In an update, the learner does the first of W parts, and worker 0
    stays idle. So at most W processes are busy, and with W cores no process waits for a core. In central learning, the
    learner does a whole update.

    Example: the default job has 16 environments, and a number of shards that does not depend on W. With two workers,
    each collects 8 columns. In an update, the learner computes the first half of the shards and worker 1 the other
    half; the network is small, so the learner alone adds and steps.

    Returns:
        The part of the learner, then that of each worker.
    """
    columns, episodes, nothing = range(config.rows), range(len(config.own_eval_episodes)), range(0)
    if not workers:
        return [Part(columns, episodes, range(config.shards), range(parameters), range(parameters), row=0)]
    parts = workers if config.workers_compute_gradients else 1
    sum_parts = parts if config.shards * parameters >= MIN_DIVIDED_SUM else 1
    step_parts = parts if parameters >= MIN_DIVIDED_STEP else 1
    updates = [
        (
            partition(config.shards, parts, w) if w < parts else nothing,
            partition(parameters, sum_parts, w) if w < sum_parts else nothing,
            partition(parameters, step_parts, w) if w < step_parts else nothing,
        )
        for w in range(workers)
    ]
    learner = Part(nothing, nothing, *updates[0], row=None)
    updates[0] = nothing, nothing, nothing
    return [learner] + [
        Part(config.columns_by_worker[w], partition(len(episodes), workers, w), *updates[w], row=w)
        for w in range(workers)
    ]


class Share:
    """Carries out commands for a part of the work. Nothing else in a run executes a command.

    Attributes:
        timer: measures the phases of this process.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        model: ActorCritic,
        buffers: SharedBuffers,
        part: Part,
        timer: PhaseTimer,
        ask: Callable[[], None] | None = None,
    ) -> None:
        """Allocate the memory, and create the environments.

        Args:
            model: the network that learns; its parameters are views of the shared weights.
            ask: lets the learner act for this process. None: it acts itself.

        Raises:
            EnvError: if an environment cannot be created.
        """
        self.timer = timer
        self._part = part
        progress = np.zeros(2, np.int64) if part.row is None else buffers.control.progress[part.row]
        Progress.counter = progress[1:]
        self._drawn = np.zeros(len(NAMES), bool) if part.row is None else buffers.control.drawn[part.row]
        self._key = config.seed, config.first_row + part.columns.start
        self._modules = user_modules(model)
        self._optimizer = Optimizer(config, buffers, part.sums, part.steps)
        self._gradients: ShardGradients | DeviceUpdate
        if part.shards and config.device == "cpu":
            self._gradients = ShardGradients(config, task.distribution, model, buffers, progress=progress[1:])
        elif part.shards:
            self._gradients = self._device = DeviceUpdate(config, task.distribution, model, buffers)
        with ExitStack() as opened, self._watched("made"):  # closes the environments if a later one cannot be created
            if part.columns:
                self._collector = Collector(config, task, model, buffers, part.columns, progress, ask)
                opened.callback(self._collector.close)
                self._evaluation = EvaluationShare(config, task, model, buffers, part.episodes, progress)
                opened.callback(self._evaluation.close)
            self._opened = opened.pop_all()
        blas_libraries.cache_clear()  # the environments may have loaded others

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
        with self._watched("begun"):
            if episodes is not None:
                return self._collector.restore(iteration, episodes)
            self._collector.start()
            return ()

    @contextmanager
    def _watched(self, *key: object) -> Iterator[None]:
        """Keep the global generators of the process, and note from which of them the environments have drawn."""
        drawn: set[str] = set()
        try:
            with kept_generators(*self._key, *key) as drawn:
                yield
        finally:
            self._drawn |= [name in drawn for name in NAMES]

    def execute(self, command: Command) -> tuple[float, float]:
        """Carry out the own part of a command, if there is one, with one thread and in full precision.

        Returns:
            When it began and ended, in seconds of the monotonic clock.

        Raises:
            EnvError: if an environment raises while its rollout is collected.
            ShmppoError: if an environment raises in an evaluation.
        """
        if not self._part.has(type(command)):
            return (now := self.timer.switch("other")), now
        began = self.timer.switch(WORK[type(command)][0])
        set_numeric_modes()  # the code of an environment or a callback may have changed them
        match command:
            case ComputeGradients(epoch, minibatch):
                with drawn_by(self._modules):
                    self._gradients.compute(epoch, minibatch, self._part.shards)
            case Update(begin, end, first_limit):
                with drawn_by(self._modules):
                    self._device.update(begin, end, first_limit)
            case ReduceGradients():
                self._optimizer.add_gradients()
            case StepOptimizer():
                self._optimizer.step()
            case Collect(iteration):
                with self._watched(iteration):
                    self._collector.collect(iteration, self.timer)
                set_numeric_modes()  # for the learner without workers
            case Evaluate(iteration):
                with self._watched(iteration):
                    self._evaluation.play(iteration)
                set_numeric_modes()
        return began, self.timer.switch("other")

    def close(self) -> None:
        """Close the environments. Safe to call twice."""
        with kept_generators():  # `close` of an environment may draw, too
            self._opened.close()
        Progress.counter = np.zeros(1, np.int64)  # the other array would keep the shared memory
