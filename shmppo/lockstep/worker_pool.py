"""The pool with worker processes: it sends each command to the processes that have a part of it, and measures times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.mailbox import LearnerMailbox
from shmppo.lockstep.pool import Collect, Command, Evaluate, Times
from shmppo.lockstep.share import WORK, Share, divide_work
from shmppo.lockstep.worker import WorkerSetup
from shmppo.lockstep.worker_processes import WorkerProcesses
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.utils.machine import usable_cores
from shmppo.utils.phase_timer import PhaseTimer


class WorkerPool:
    """A pool with W worker processes in lock-step. For the public methods, see `Pool`.

    Signaling seconds are the time that lock-step itself costs. They are the sum of two delays on the monotonic clock:
    - from the learner's command to the start of its execution, as a mean over the processes that execute it;
    - from the end of the last process to the moment at which the learner continues.
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
        self._collect_seconds = self._signaling_seconds = 0.0
        self._worker_seconds = np.zeros(config.num_workers)
        self._part, *self._parts = divide_work(config, buffers.published.weights.size, config.num_workers)
        spins = config.num_workers <= usable_cores()
        self._helpers = {kind: [w for w, part in enumerate(self._parts) if part.has(kind)] for kind in WORK}
        setups = [
            WorkerSetup(config, task, buffers.fields, buffers.memory, log_file, spins, part, w)
            for w, part in enumerate(self._parts)
        ]
        self._mailbox = LearnerMailbox(buffers.control)
        self._workers = WorkerProcesses(setups, self._mailbox, buffers.control.progress, actions, mark_lost)

    @property
    def restarts(self) -> int:
        return self._workers.restarts

    @property
    def changed_values(self) -> set[str]:
        return self._workers.changed_values

    @property
    def pids(self) -> list[int]:
        return self._workers.pids

    def start(self, model: ActorCritic) -> None:
        self._share = Share(self._config, self._task, model, self._buffers, self._part, self.timer)
        self._workers.wait_ready(range(len(self._parts)))

    def restart(self, task: EnvSpec) -> None:
        self._workers.restart(task)

    def execute(self, command: Command) -> None:
        """Let every process that has a part of a command do it, and wait until all have done theirs."""
        workers = self._helpers[type(command)]
        if not workers:
            if self._part.has(type(command)):  # a rank may have no episode of an evaluation
                self._share.execute(command)
            return
        timer, timings = self.timer, self._buffers.timings
        waiting = "evaluation" if isinstance(command, Evaluate) else "wait"
        sent = timer.switch(waiting)
        for w in workers:
            self._mailbox.send(w, command)
        own = [self._share.execute(command)] if self._part.has(type(command)) else []
        timer.switch(waiting)
        self._workers.wait_replacing_failed(workers, command)
        now = timer.switch("other")
        if isinstance(command, Evaluate):  # its whole time belongs to the phase "evaluation"
            return
        if not own:
            timer.add_blocked(now - sent, timings.phase_seconds[workers])
        starts, ends = np.array([*own, *timings.command_interval[workers]]).T
        self._signaling_seconds += float((starts - sent).mean() + now - ends.max())
        if isinstance(command, Collect):
            self._collect_seconds, self._worker_seconds = now - sent, timings.phase_seconds.sum(axis=1)

    def take_times(self) -> Times:
        """Return the times since the last call."""
        signaling, self._signaling_seconds = self._signaling_seconds, 0.0
        return Times(self.timer.reset(), self._collect_seconds, self._worker_seconds, signaling)

    def close(self, grace: float = 2.0) -> None:
        self._workers.close(grace)
