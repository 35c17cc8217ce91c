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

from shmppo.errors import RankError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import Control

log = logging.getLogger(__name__)

POLL_SECONDS = 0.005  # pause between two checks of how many have finished
POLL_SECONDS_PER_RANK = 0.001  # minimum pause per rank, so that many ranks do not overload the store


class Preemption:
    """Ends the rollouts of this rank early, once a fraction of the ranks or of its workers have finished theirs."""

    def __init__(
        self, fraction: float, control: Control, process_group: ProcessGroup, first_columns: list[int]
    ) -> None:
        """Create the preemption of one rank.

        Args:
            fraction: fraction of the ranks or of the workers that must have finished, from 0 to 1.
            control: contains the numbers of finished rollouts and the field that ends a rollout.
            first_columns: [W], index of the first environment of each worker.
        """
        self._fraction = fraction
        self._process_group = process_group
        self._finished_rollouts, self._stop_early = control.finished_rollouts, control.stop_early
        self._first_columns = first_columns

    @contextmanager
    def watch(self, iteration: int) -> Iterator[None]:
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
        self._process_group.count(f"finished/{iteration}", 1)

    def _poll(self, iteration: int, finished: threading.Event) -> None:
        """Write `stop_early` once enough have finished. Return then, or when this rank has finished its rollout."""
        pause = max(POLL_SECONDS, POLL_SECONDS_PER_RANK * self._process_group.size)
        try:
            while not finished.wait(pause):
                workers = float(np.mean(self._finished_rollouts[self._first_columns] > iteration))
                ranks = self._process_group.count(f"finished/{iteration}", 0) / self._process_group.size
                if max(workers, ranks) >= self._fraction:
                    self._stop_early[0] = iteration + 1
                    return
        except RankError as error:  # the next collective operation raises an error that says more
            log.warning("preemption: %s", error)
