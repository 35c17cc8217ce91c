"""Pre-emption of stragglers: once enough ranks, or workers of a rank, have finished a rollout, the others end theirs.

After DD-PPO (Wijmans et al., arXiv 1911.00357, section 3): the ranks count themselves in the process group's store, one
key per update. A rollout that is ended early keeps at least `TrainConfig.min_steps` steps of every environment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.errors import RankError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import SharedBuffers

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.005  # between two looks at who has finished
LOOK_SECONDS_PER_RANK = 0.001  # so that many ranks do not keep the store busy


class Preemption:
    """Halts the rollouts of this rank when others have waited long enough; does nothing unless it is asked for."""

    def __init__(
        self, config: TrainConfig, arena: SharedBuffers, ranks: ProcessGroup, first_columns: list[int]
    ) -> None:
        """first_columns: the first environment of each worker."""
        self._fraction = config.preempt_fraction
        self._ranks = ranks
        self._rollouts, self._halt = arena.array("rollouts"), arena.array("halt")
        self._first_columns = first_columns

    @contextmanager
    def watching(self, iteration: int) -> Iterator[None]:
        """Around the sampling of an iteration."""
        if self._fraction is None:
            yield
            return
        finished = threading.Event()
        watch = threading.Thread(target=self._watch, args=(iteration, finished), name="preemption", daemon=True)
        watch.start()
        try:
            yield
        finally:
            finished.set()
            watch.join()
        self._ranks.count(_key(iteration), 1)

    def _watch(self, iteration: int, finished: threading.Event) -> None:
        assert self._fraction is not None
        pause = max(LOOK_SECONDS, LOOK_SECONDS_PER_RANK * self._ranks.size)
        try:
            while not finished.wait(pause):
                workers = float(np.mean(self._rollouts[self._first_columns] > iteration))
                ranks = self._ranks.count(_key(iteration), 0) / self._ranks.size
                if max(workers, ranks) >= self._fraction:
                    self._halt[0] = iteration + 1
                    return
        except RankError as error:  # the exchange that follows says more
            log.warning("pre-emption: %s", error)


def _key(iteration: int) -> str:
    return f"finished/{iteration}"
