"""The main function of a worker process: receive commands, carry them out, acknowledge. It has one thread.

A worker watches the learner's sentinel while it waits, so it never outlives the learner. It ignores SIGINT and SIGUSR1,
which terminals and clusters send to every process of a run, because the learner decides when a run stops.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError
from shmppo.models.actor_critic import ActorCritic, move_parameters
from shmppo.parallel.fork_server import close_fork_server_pipe
from shmppo.parallel.mailbox import MAX_TEXT, Collect, Failed, PipeQueue, Ready, RefreshStates, WorkerMailbox
from shmppo.parallel.shared_buffers import Field, SharedBuffers
from shmppo.ppo.gradients import ShardGradients
from shmppo.sampling.action_log import EpisodeInProgress
from shmppo.sampling.collector import Collector
from shmppo.sampling.state_refresh import StateRefresh
from shmppo.utils.logs import log_to
from shmppo.utils.phase_timer import PhaseTimer

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker gets once, at its start."""

    config: TrainConfig
    task: Task
    fields: tuple[Field, ...]
    memory: torch.Tensor
    log_file: Path
    spins: bool
    """Whether there is a core for each worker, so that it may spin between minibatches."""
    index: int = 0
    columns: range = range(0)
    """Environments that it steps."""
    shards: range = range(0)
    """Shards of each minibatch whose gradients it computes."""
    sequence_number: int = 0
    """Of the last command sent to a predecessor."""
    iteration: int = 0
    episodes: list[EpisodeInProgress] | None = None
    """The episodes to restore, as they were before `iteration`. None at the start of a run."""


def run_worker(setup: WorkerSetup, commands: PipeQueue, reports: PipeQueue) -> None:
    """Run until the learner sends Stop or ends. `commands` and `reports` belong to this worker alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_fork_server()
    torch.set_num_threads(1)
    with log_to(setup.log_file):
        try:
            _serve(setup, commands, reports)
        except Exception as error:
            text = traceback.format_exc()
            log.error("%s", text)
            env_index = error.env_index if isinstance(error, EnvError) else None
            reports.put(Failed(text[-MAX_TEXT:], env_index))
            sys.exit(1)


def _end_with_fork_server() -> None:
    """On Linux, let the kernel kill this process when the fork server ends, even if this process is stopped.

    A running worker detects by itself that the learner is gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        close_fork_server_pipe()


def _serve(setup: WorkerSetup, commands: PipeQueue, reports: PipeQueue) -> None:
    config, task, own = setup.config, setup.task, setup.columns
    buffers = SharedBuffers(setup.fields, setup.memory)
    model = ActorCritic(config, task.observation, task.distribution)
    part = {"low": own.start, "high": own.stop, "progress": buffers.control.progress[setup.index]}
    # The collector tries inference batches with random weights: the learner may not have written the shared ones yet.
    collector = Collector(config, task, model, buffers, **part)
    move_parameters(model, torch.from_numpy(buffers.published.weights), keep=False)
    states = StateRefresh(config, task.distribution, model, buffers, **part)
    gradients = ShardGradients(config, task.distribution, model, buffers)
    seconds = buffers.timings.phase_seconds[setup.index]
    interval = buffers.timings.command_interval[setup.index]
    if setup.episodes is None:
        collector.start()
        reports.put(Ready())
    else:
        reports.put(Ready(collector.restore(setup.iteration, setup.episodes)))
    mailbox = WorkerMailbox(buffers.control, setup.index, setup.sequence_number, commands, reports, spins=setup.spins)
    timer = PhaseTimer()
    while (command := mailbox.receive()) is not None:
        timer.reset()
        interval[0] = timer.switch("other")
        version = int(buffers.published.version[0])
        if version != command.version:
            raise RuntimeError(
                f"the command names weights version {command.version}, but version {version} is published"
            )
        if isinstance(command, Collect):
            collector.collect(command.iteration, timer)
        elif isinstance(command, RefreshStates):
            timer.switch("inference")
            states.refresh()
        else:
            timer.switch("gradient")
            gradients.compute(command.epoch, command.minibatch, setup.shards)
        interval[1] = timer.switch("other")
        seconds[:] = timer.reset()
        mailbox.acknowledge()
    collector.close()
