"""The main function of a worker process, and the action log, from which its environments are restored.

A worker has one thread. While it waits for a command, it also watches the learner's sentinel, and it exits when the
learner has ended. It ignores SIGINT and SIGUSR1, because the learner decides when a run stops. Terminals and cluster
schedulers send these signals to every process of a run.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.schedule import Options
from shmppo.envs.spec import Task
from shmppo.errors import EnvError, ShmppoError, open_standard_streams
from shmppo.models.actor_critic import build_model, move_parameters
from shmppo.parallel.fork_server import children_of, end_with_fork_server, kill
from shmppo.parallel.mailbox import (
    Collect,
    Evaluate,
    Failed,
    PipeQueue,
    Ready,
    ReduceGradients,
    RefreshStates,
    StepOptimizer,
    WorkerMailbox,
)
from shmppo.parallel.shared_buffers import Field, SharedBuffers
from shmppo.ppo.gradients import ShardGradients
from shmppo.ppo.optimizer import Optimizer
from shmppo.sampling.collector import Collector, EpisodeInProgress
from shmppo.sampling.evaluation import EvaluationShare
from shmppo.utils.files import open_file
from shmppo.utils.logs import log_to
from shmppo.utils.partition import partition
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.torch_utils import full_precision
from shmppo.utils.user_code import FAILURES, describe_error, user_traceback

STACK_SIGNAL = signal.SIGUSR2
"""A worker that gets this signal writes its stack to the log file, even if an environment never returns."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSetup:
    """The arguments of a worker process."""

    config: TrainConfig
    task: Task
    fields: tuple[Field, ...]
    memory: torch.Tensor
    """The shared memory, uint8 [bytes]."""
    log_file: Path
    spins: bool
    """Whether the worker spins between minibatches before it blocks. It does if each worker has a core."""
    index: int = 0
    """w, index of the worker."""
    iteration: int = 0
    """The iteration that is collected next."""
    episodes: list[EpisodeInProgress] | None = None
    """The episodes to restore, as they were before `iteration`. None at the start of a run."""


def run_worker(setup: WorkerSetup, commands: PipeQueue, reports: PipeQueue, environ: dict[str, str]) -> None:
    """Run a worker until the learner sends Stop or ends. If it raises, it sends Failed and exits with code 1.

    environ: environment variables of the learner. The fork server has those of an earlier moment.
    """
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # if the fork server could not import `forked_children`
    end_with_fork_server()
    multiprocessing.current_process().daemon = False  # so that environments may start processes
    open_standard_streams()
    torch.set_num_threads(1)
    with log_to(setup.log_file), open_file(setup.log_file, "a") as stack:
        faulthandler.register(STACK_SIGNAL, stack, all_threads=False)
        try:
            _serve(setup, commands, reports)
        except FAILURES as error:
            log.error("%s", traceback.format_exc())
            reports.put(_failed(error))
            kill(children_of(os.getpid()))  # what its environments have started, such as simulators
            sys.exit(1)


def _failed(error: BaseException) -> Failed:
    """Describe an exception for the learner."""
    if isinstance(error, ShmppoError):
        env_index = error.env_index if isinstance(error, EnvError) else None
        return Failed.shortened(str(error), error.details, env_index)
    return Failed.shortened(describe_error(error), user_traceback(error), None)


def _serve(setup: WorkerSetup, commands: PipeQueue, reports: PipeQueue) -> None:
    """Create the environments and the network, send Ready, and carry out commands until the worker has to end."""
    config, task, index = setup.config, setup.task, setup.index
    shards = partition(config.shards, config.num_workers, index)
    episodes = partition(len(config.own_eval_episodes), config.num_workers, index)
    buffers = SharedBuffers(setup.fields, setup.memory)
    model = build_model(config, task.observation, task.distribution)  # with the seed of the learner's
    move_parameters(model, torch.from_numpy(buffers.published.weights), keep=False)
    progress = buffers.control.progress[index]
    collector = Collector(config, task, model, buffers, config.columns(index), progress)
    gradients = ShardGradients(config, task.distribution, model, buffers, progress=progress[1:])
    optimizer = Optimizer(config, buffers, index, config.num_workers)
    evaluation = EvaluationShare(config, task, model, buffers, episodes, progress)
    seconds, interval = buffers.timings.phase_seconds[index], buffers.timings.command_interval[index]
    # Created before Ready is reported: after that, the learner may send a command.
    mailbox = WorkerMailbox(buffers.control, index, commands, reports, spins=setup.spins)
    if setup.episodes is None:
        collector.start()
        reports.put(Ready())
    else:
        reports.put(Ready(collector.restore(setup.iteration, setup.episodes)))
    timer = PhaseTimer()
    while (command := mailbox.receive()) is not None:
        torch.set_num_threads(1)  # the code of an environment may have changed it, and the precision
        full_precision()
        timer.reset()
        interval[0] = timer.switch("other")
        if isinstance(command, Collect):
            collector.collect(command.iteration, timer)
        elif isinstance(command, RefreshStates):
            timer.switch("inference")
            collector.refresh_states()
        elif isinstance(command, Evaluate):
            timer.switch("evaluation")
            evaluation.play(command.iteration)
        elif isinstance(command, ReduceGradients):
            timer.switch("reduce")
            optimizer.add_gradients()
        elif isinstance(command, StepOptimizer):
            timer.switch("optimizer")
            optimizer.step()
        else:
            timer.switch("gradient")
            gradients.compute(command.epoch, command.minibatch, shards)
        interval[1] = timer.switch("other")
        seconds[:] = timer.reset()
        mailbox.acknowledge()
    collector.close()
    evaluation.close()


class ActionLog:
    """The actions of the episode in progress of every environment, up to the last committed rollout.

    Seed and actions determine an episode, so a replay restores the environment. Workers keep no copy of the log.

    Attributes:
        iteration: number of committed rollouts. The next rollout starts from the carry that this iteration reads.
        options: options of `reset` (--env-schedule) by the iteration, counted from 1, in which episodes got them: the
            current iteration, and those in which episodes in progress have begun.
    """

    def __init__(self, num_envs: int, action_size: int, limit: int, env_rows: int = 1) -> None:
        """Create an empty log.

        Args:
            limit: the log stores no actions of episodes with more steps.
            env_rows: the number of agents, each of which has an index of its own.
        """
        self.iteration = 0
        self.options: dict[int, Options] = {}
        self._limit, self._env_rows = limit, env_rows
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
                    message = "environment %d: the episode has more than %d steps, so it cannot be replayed"
                    log.info(message, n // self._env_rows, self._limit)
                self._parts[n].clear()
            elif begin < end:
                self._parts[n].append(actions[begin:end, n].copy())
        self._numbers = numbers.tolist()
        self.iteration += 1

    def begin_iteration(self, options: Options) -> None:
        """Set the options of the episodes that begin in the next iteration."""
        needed = {*self._began, self.iteration}  # the next options may depend on those of the last iteration
        self.options = {began: known for began, known in self.options.items() if began in needed}
        self.options[self.iteration + 1] = options

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
                n,
                self._numbers[n],
                self._joined(n) if self._lengths[n] <= self._limit else None,
                self._began[n],
                self.options.get(self._began[n]),
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
