"""The process around a collector: receives orders, carries them out, answers; one thread.

A worker watches the learner's sentinel while it waits, so it never outlives it, and ignores SIGINT
and SIGUSR1, which terminals and clusters send to every process of a run: stopping is the learner's decision.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import Task
from shmppo.errors import EnvError
from shmppo.models.actor_critic import ActorCritic, move_parameters
from shmppo.parallel.mailbox import LONGEST_TEXT, Collect, Failed, Ready, Refresh, WorkerMailbox
from shmppo.parallel.shared_buffers import Field, SharedBuffers
from shmppo.ppo.gradients import ShardGradients
from shmppo.sampling.action_log import EpisodeInProgress
from shmppo.sampling.collector import Collector
from shmppo.sampling.state_refresh import StateRefresh
from shmppo.utils.logs import log_to
from shmppo.utils.phase_timer import PhaseTimer

_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is told once, at its start."""

    config: TrainConfig
    task: Task
    fields: tuple[Field, ...]
    memory: torch.Tensor
    log_file: Path
    spins: bool
    """Whether there are cores enough to wait awake between minibatches."""
    index: int = 0
    columns: range = range(0)
    """Environments that it samples."""
    shards: range = range(0)
    """Shards of each minibatch whose gradients it computes."""
    turn: int = 0
    """Orders given to its predecessors."""
    iteration: int = 0
    episodes: list[EpisodeInProgress] | None = None
    """Where its environments are to be before `iteration`; None at the start of a run."""


def run_worker(setup: WorkerSetup, commands: Any, reports: Any) -> None:
    """The worker's main function; `commands` and `reports` are its own pair of torch.multiprocessing queues."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_the_starter()
    torch.set_num_threads(1)
    with log_to(setup.log_file):
        try:
            _serve(setup, commands, reports)
        except Exception as error:
            text = traceback.format_exc()
            logging.getLogger(__name__).error("%s", text)
            env_index = error.env_index if isinstance(error, EnvError) else None
            reports.put(Failed(text[-LONGEST_TEXT:], env_index))
            sys.exit(1)


def _end_with_the_starter() -> None:
    """On Linux: be killed when the process that forked this one ends, even while stopped.

    That is the fork server. It ends when nobody holds its pipe any more, and every worker is handed an end of it: a
    stopped one would keep alive what is to kill it, so it is let go. A worker that runs notices by itself that the
    learner is gone.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def _serve(setup: WorkerSetup, commands: Any, reports: Any) -> None:
    arena = SharedBuffers(setup.fields, setup.memory)
    model = ActorCritic(setup.config, setup.task.observation, setup.task.distribution)
    low, high, progress = setup.columns.start, setup.columns.stop, arena.array("progress")[setup.index]
    # It tries calls with the weights at hand: random ones, since the learner may not have written the shared ones yet.
    collector = Collector(setup.config, setup.task, model, arena, low=low, high=high, progress=progress)
    move_parameters(model, arena.tensor("weights"), keep=False)
    states = StateRefresh(setup.config, setup.task.distribution, model, arena, low=low, high=high, progress=progress)
    gradients = ShardGradients(setup.config, setup.task.distribution, model, arena)
    seconds, stamps = arena.array("phase_seconds")[setup.index], arena.array("stamps")[setup.index]
    version = arena.array("version")
    if setup.episodes is None:
        collector.start()
        reports.put(Ready())
    else:
        reports.put(Ready(collector.restore(setup.iteration, setup.episodes)))
    inbox = WorkerMailbox(arena, setup.index, setup.turn, commands, reports, spins=setup.spins)
    timer = PhaseTimer()
    while (order := inbox.next()) is not None:
        timer.reset()
        stamps[0] = timer.switch("other")
        if int(version[0]) != order.version:
            raise RuntimeError(f"told to use weights version {order.version}, but {int(version[0])} is published")
        if isinstance(order, Collect):
            collector.collect(order.iteration, timer)
        elif isinstance(order, Refresh):
            timer.switch("inference")
            states.refresh()
        else:
            timer.switch("gradient")
            gradients.compute(order.epoch, order.minibatch, setup.shards)
        stamps[1] = timer.switch("other")
        seconds[:] = timer.reset()
        inbox.answer()
    collector.close()
