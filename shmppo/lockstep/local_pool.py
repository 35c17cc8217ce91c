"""The pool without worker processes (--workers 0)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.lockstep.action_log import ActionLog
from shmppo.lockstep.pool import Collect, Command, Times
from shmppo.lockstep.share import Share, divide_work
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.utils.phase_timer import PhaseTimer


class LocalPool:
    """Does all the work in the learner's process. For the methods, see `Pool`."""

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        buffers: SharedBuffers,
        actions: ActionLog,
        mark_lost: Callable[[int], None],
    ) -> None:
        """Create a pool that has no environments yet; `start` creates them.

        Args:
            actions: the episodes to restore at the start, if its iteration is above 0.
            mark_lost: called with the index of each environment that could not be restored and begins its next episode.
        """
        self.timer = PhaseTimer()
        self.restarts = 0
        self.pids: list[int] = []
        self.changed_values: set[str] = set()
        self._config, self._task, self._buffers = config, task, buffers
        self._actions, self._mark_lost = actions, mark_lost
        self._share: Share | None = None
        self._collect_seconds = 0.0

    def start(self, model: ActorCritic) -> None:
        config, buffers, actions = self._config, self._buffers, self._actions
        self._model = model
        (everything,) = divide_work(config, buffers.published.weights.size, workers=0)
        self._share = Share(config, self._task, model, buffers, everything, self.timer)
        episodes = actions.episodes(everything.columns) if actions.iteration else None
        for n in self._share.begin(actions.iteration, episodes):
            self._mark_lost(n)

    def restart(self, task: EnvSpec) -> None:
        self.close()
        self._task = task
        self.start(self._model)

    def execute(self, command: Command) -> None:
        assert self._share is not None, "the pool has not been started"
        began, ended = self._share.execute(command)
        if isinstance(command, Collect):
            self._collect_seconds = ended - began

    def take_times(self) -> Times:
        seconds = self._collect_seconds
        return Times(self.timer.reset(), seconds, np.array([seconds]), 0.0)

    def close(self, grace: float = 2.0) -> None:
        if self._share is not None:
            self._share.close()
