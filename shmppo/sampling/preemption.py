"""Preemption of stragglers: when enough ranks or workers have finished a rollout, the others end theirs early.

After DD-PPO (Wijmans et al., arXiv 1911.00357, section 3). The ranks count themselves in the process group's store,
with one key per iteration. A rollout that ends early keeps at least `TrainConfig.min_steps` steps of every environment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from shmppo.errors import RankError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import Control

log = logging.getLogger(__name__)

POLL_SECONDS = 0.005  # between two checks of who has finished
POLL_SECONDS_PER_RANK = 0.001  # so that many ranks do not overload the store


class Preemption:
    """Ends the rollouts of this rank early once others have waited long enough."""

    def __init__(
        self, fraction: float, control: Control, process_group: ProcessGroup, first_columns: list[int]
    ) -> None:
        """fraction: of ranks or workers that must have finished; first_columns: first environment of each worker."""
        self._fraction = fraction
        self._process_group = process_group
        self._finished_rollouts, self._stop_early = control.finished_rollouts, control.stop_early
        self._first_columns = first_columns

    @contextmanager
    def watch(self, iteration: int) -> Iterator[None]:
        """Surround the collection of an iteration's rollout."""
        finished = threading.Event()
        thread = threading.Thread(target=self._poll, args=(iteration, finished), name="preemption", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()
        self._process_group.count(_key(iteration), 1)

    def _poll(self, iteration: int, finished: threading.Event) -> None:
        pause = max(POLL_SECONDS, POLL_SECONDS_PER_RANK * self._process_group.size)
        try:
            while not finished.wait(pause):
                workers = float(np.mean(self._finished_rollouts[self._first_columns] > iteration))
                ranks = self._process_group.count(_key(iteration), 0) / self._process_group.size
                if max(workers, ranks) >= self._fraction:
                    self._stop_early[0] = iteration + 1
                    return
        except RankError as error:  # the next collective call raises an error that says more
            log.warning("preemption: %s", error)


def _key(iteration: int) -> str:
    return f"finished/{iteration}"
