"""The main function of a worker process: receive a command, execute it, acknowledge it.

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import modules_of
from shmppo.envs.creation_errors import import_environment
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import EnvHandle, Progress, VectorEnv
from shmppo.errors import open_standard_streams
from shmppo.lockstep.fork_server import HANG_SIGNAL, STACK_SIGNAL, children_of, end_with_fork_server, kill
from shmppo.lockstep.mailbox import Failed, LearnerEnded, PipeQueue, Ready, WorkerMailbox
from shmppo.lockstep.share import Part, Share
from shmppo.models.actor_critic import build_model, move_parameters
from shmppo.parallel.shared_buffers import Field, SharedBuffers
from shmppo.sampling.collector import EpisodeInProgress
from shmppo.utils.files import open_file
from shmppo.utils.global_generators import kept_generators
from shmppo.utils.logs import log_to
from shmppo.utils.phase_timer import PhaseTimer
from shmppo.utils.program import changed_value
from shmppo.utils.torch_utils import numeric_modes
from shmppo.utils.user_code import FAILURES

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSetup:
    """The arguments of a worker process."""

    config: TrainConfig
    task: EnvSpec
    fields: tuple[Field, ...]
    memory: torch.Tensor
    """The shared memory, uint8 [bytes]."""
    log_file: Path
    spins: bool
    """Whether the worker spins before it blocks. It does if each worker has a core and if it computes gradients."""
    part: Part
    """Its part of the work."""
    index: int
    """w, index of the worker."""
    iteration: int = 0
    """The iteration that is collected next."""
    episodes: list[EpisodeInProgress] | None = None
    """The episodes to restore, as they were before `iteration`. None at the start of a run."""


def run_worker(setup: WorkerSetup, commands: PipeQueue, reports: PipeQueue, environ: dict[str, str]) -> None:
    """Run a worker until the learner sends Stop or ends. If it raises, it sends Failed and exits with code 1.

    environ: environment variables of the learner. The fork server has those of an earlier moment.
    """
    own_pid = os.getpid()
    os.setpgid(0, 0)  # so that the learner can also kill what its environments have started
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # if the fork server could not import `forked_children`
    end_with_fork_server()
    multiprocessing.current_process().daemon = False  # so that environments may start processes
    open_standard_streams()
    with numeric_modes(), log_to(setup.log_file), open_file(setup.log_file, "a") as stack:
        faulthandler.register(STACK_SIGNAL, stack, all_threads=False)
        signal.signal(HANG_SIGNAL, _interrupt_environment)
        try:
            _serve(setup, commands, reports)
        except FAILURES as error:
            log.error("%s", traceback.format_exc())
            if os.getpid() != own_pid:  # an environment has forked this process
                os._exit(1)
            reports.put(Failed.of(error))
            kill(children_of(os.getpid()))  # what its environments have started, such as simulators
            sys.exit(1)


def _interrupt_environment(number: int, frame: FrameType | None) -> None:
    """Handle HANG_SIGNAL: raise a TimeoutError in the call of an environment, which then is its failure."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), (EnvHandle, VectorEnv)):
            Progress.counter += 1  # another environment may hang next
            Progress.interrupted = True
            raise TimeoutError("no result in time; if the environment is that slow, raise --worker-timeout")
        frame = frame.f_back


def _serve(setup: WorkerSetup, commands: PipeQueue, reports: PipeQueue) -> None:
    """Create the environments and the network, send Ready, and carry out commands until the worker has to end."""
    config, task, index = setup.config, setup.task, setup.index
    buffers = SharedBuffers(setup.fields, setup.memory)
    with kept_generators():  # what modules draw while they are imported is not the environments'
        import_environment(config.env_id)
    changed = changed_value(task.program, modules_of(config.to_json()))  # before environments change it
    model = build_model(config, task.observation, task.distribution)  # with the seed of the learner's
    move_parameters(model, torch.from_numpy(buffers.published.weights), keep=False)
    mailbox = WorkerMailbox(buffers.control, index, commands, reports, spins=setup.spins)
    ask = mailbox.ask if config.act_on == "device" else None
    share = Share(config, task, model, buffers, setup.part, PhaseTimer(), ask)
    seconds, interval = buffers.timings.phase_seconds[index], buffers.timings.command_interval[index]
    reports.put(Ready(share.begin(setup.iteration, setup.episodes), changed))
    with suppress(LearnerEnded):
        while (command := mailbox.receive()) is not None:
            share.timer.reset()
            began, interval[1] = share.execute(command)
            if mailbox.is_first:
                interval[0] = began
            seconds[:] = share.timer.reset()
            mailbox.acknowledge()
    share.close()
