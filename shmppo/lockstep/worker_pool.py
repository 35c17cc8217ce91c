"""The pool of processes: it sends each command to the processes that have a part of it, and measures times."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.mailbox import LearnerMailbox
from shmppo.lockstep.pool import Collect, Command, ComputeGradients, Evaluate, Times
from shmppo.lockstep.share import WORK, Share, divide_work
from shmppo.lockstep.worker import WorkerSetup
from shmppo.lockstep.worker_processes import WorkerProcesses
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.sampling.acting_server import ActingServer
from shmppo.utils.machine import usable_cores
from shmppo.utils.phase_timer import PhaseTimer


class WorkerPool:
    """Carries out commands for all environments, shards, and parameters of a rank.

    It has W worker processes in lock-step. Without workers (--workers 0), the learner's process does all the work.

    Signaling seconds are the time that lock-step itself costs. They are the sum of two delays on the monotonic clock:
    - from the learner's commands to the start of the first one, as a mean over the processes that execute it;
    - from the end of the last one in the last process to the moment at which the learner continues.

    Attributes:
        timer: measures the phases of the learner.
        workers: the worker processes.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        buffers: SharedBuffers,
        actions: ActionLog,
        mark_lost: Callable[[int], None],
        log_file: Path,
    ) -> None:
        """Start all workers. They create their environments and restore episodes while the learner continues.

        Args:
            actions: the episodes to restore at the start if its iteration is above 0, and when a worker is replaced.
            mark_lost: called with the index of each environment that could not be restored and begins its next episode.
            log_file: file to which the workers append their log records.

        Raises:
            OSError: if the system cannot start as many processes.
        """
        self.timer = PhaseTimer()
        self._config, self._task, self._buffers = config, task, buffers
        self._actions, self._mark_lost = actions, mark_lost
        self._collect_seconds = self._signaling_seconds = 0.0
        self._worker_seconds = np.zeros(max(config.num_workers, 1))
        self._part, *self._parts = divide_work(config, buffers.published.weights.size, config.num_workers)
        spins = config.num_workers <= usable_cores()
        self._helpers = {kind: [w for w, part in enumerate(self._parts) if part.has(kind)] for kind in WORK}
        setups = [
            WorkerSetup(
                config, task, buffers.fields, buffers.memory, log_file, spins and part.has(ComputeGradients), part, w
            )
            for w, part in enumerate(self._parts)
        ]
        self._mailbox = LearnerMailbox(buffers.control)
        progress = buffers.control.progress
        self.workers = WorkerProcesses(config, setups, self._mailbox, progress, actions, mark_lost)
        self._share: Share | None = None

    def start(self, model: ActorCritic) -> None:
        """Wait until every environment has begun its first episode or has been restored.

        Args:
            model: the network that learns.

        Raises:
            EnvError: if an environment raises.
            WorkerError: if a worker has been replaced too often.
        """
        self._model = model
        server = ActingServer(self._config, model, self._buffers) if self._config.act_on == "device" else None
        self.workers.server = server
        ask = None if server is None else functools.partial(server.act, [0])
        self._share = Share(self._config, self._task, model, self._buffers, self._part, self.timer, ask)
        iteration = self._actions.iteration
        episodes = self._actions.episodes(self._part.columns) if iteration else None
        for n in self._share.begin(iteration, episodes):
            self._mark_lost(n)
        self.workers.wait_ready(range(len(self._parts)))

    def restart(self, task: EnvSpec) -> None:
        """Make all environments again, and restore the episodes in progress. task: description of the environments."""
        self._task = task
        self.workers.restart(task)
        if self._part.columns and self._share is not None:
            self._share.close()
            self._share = None  # it may have memory on a device
            self.start(self._model)

    def execute(self, *commands: Command) -> None:
        """Let every process that has a part of a command do it, and wait until all have done theirs.

        Args:
            commands: up to three, each of which begins when all processes have done the one before.

        Raises:
            EnvError: if an environment raises while its rollout is collected.
            ShmppoError: if an environment raises in an evaluation.
            WorkerError: if a worker has been replaced too often, fails in an optimizer step, or raises anything else.
        """
        assert self._share is not None, "the pool has not been started"
        if self.workers.server is not None and isinstance(commands[0], Collect):
            self.workers.server.load()
        workers = sorted({w for command in commands for w in self._helpers[type(command)]})
        timer, timings, collects = self.timer, self._buffers.timings, isinstance(commands[0], Collect)
        if not workers:
            for command in commands:
                began, ended = self._share.execute(command)
            if collects:
                self._collect_seconds = self._worker_seconds[0] = ended - began
            return
        waiting = "evaluation" if isinstance(commands[0], Evaluate) else "wait"
        sent = timer.switch(waiting)
        numbers, own = self._mailbox.send(workers, *commands), []
        for number, command in zip(numbers, commands, strict=True):
            if self._part.has(type(command)):
                own.append(self._share.execute(command))
                timer.switch(waiting)
            self._mailbox.complete(number)
            self.workers.wait_replacing_failed(workers, command, number)
            if command is not commands[-1]:
                self._mailbox.wake_up(workers)
        now = timer.switch("other")
        if isinstance(command, Evaluate):  # its whole time belongs to the phase "evaluation"
            return
        if not own:
            timer.add_blocked(now - sent, timings.phase_seconds[workers])
        intervals = [*timings.command_interval[workers], *([(own[0][0], own[-1][1])] if own else [])]
        starts, ends = np.array(intervals).T
        self._signaling_seconds += float((starts - sent).mean() + now - ends.max())
        if collects:
            self._collect_seconds, self._worker_seconds = now - sent, timings.phase_seconds.sum(axis=1)

    def take_times(self) -> Times:
        """Return the times since the last call. Those of a rollout stay the same until the next one is collected."""
        signaling, self._signaling_seconds = self._signaling_seconds, 0.0
        return Times(self.timer.reset(), self._collect_seconds, self._worker_seconds, signaling)

    def close(self, grace: float = 2.0) -> None:
        """End all processes; kill those that still run after `grace` seconds. Safe to call twice and after an error."""
        self.workers.close(grace)
        if self._share is not None:
            self._share.close()
