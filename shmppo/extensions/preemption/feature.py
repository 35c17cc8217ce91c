"""Preemption of stragglers: when enough ranks or workers have finished a rollout, the others end theirs early.

Source: DD-PPO, Wijmans et al., arXiv 1911.00357, section 3. Each rank that finishes a rollout increases a counter in
the store of the process group; there is one counter per iteration. A rollout that ends early has at least
`TrainConfig.min_steps` steps of every environment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.errors import RankError
from shmppo.extensions.preemption.options import PreemptionOptions
from shmppo.lockstep.feature import Feature

log = logging.getLogger(__name__)

POLL_SECONDS = 0.005  # pause between two checks of how many have finished
POLL_SECONDS_PER_RANK = 0.001  # minimum pause per rank, so that many ranks do not overload the store


class Preemption(Feature):
    """Ends the rollouts of this rank early, once a fraction of the ranks or of its workers have finished theirs."""

    inexact_reason = "--preempt-fraction ends rollouts by the clock"

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return PreemptionOptions.of(config).preempt_fraction is not None

    @contextmanager
    def around_rollout(self, iteration: int) -> Iterator[None]:
        """Watch the ranks and workers in a thread while the context is open. Open it to collect a rollout.

        Raises:
            RankError: at the end, if the store of the process group cannot be reached.
        """
        finished = threading.Event()
        thread = threading.Thread(target=self._poll, args=(iteration, finished), name="preemption", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()
        self.group.count(f"finished/{iteration}", 1)

    def _poll(self, iteration: int, finished: threading.Event) -> None:
        """Write `stop_early` once enough have finished. Return then, or when this rank has finished its rollout."""
        fraction = PreemptionOptions.of(self.config).preempt_fraction or 1.0
        pause = max(POLL_SECONDS, POLL_SECONDS_PER_RANK * self.group.size)
        control, first_columns = self.buffers.control, [columns.start for columns in self.config.columns_by_worker]
        try:
            while not finished.wait(pause):
                workers = float(np.mean(control.finished_rollouts[first_columns] > iteration))
                ranks = self.group.count(f"finished/{iteration}", 0) / self.group.size
                if max(workers, ranks) >= fraction:
                    control.stop_early[0] = iteration + 1
                    return
        except RankError as error:  # the next collective operation raises an error that says more
            log.warning("preemption: %s", error)

    def metrics(self, steps: int) -> dict[str, float]:
        return {"preempted_steps": self.config.batch_steps - steps}


FEATURE = Preemption
