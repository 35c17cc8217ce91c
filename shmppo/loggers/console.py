"""The display of a run on standard output: a panel in a terminal, lines elsewhere, a progress bar in a notebook.

With --quiet nothing is shown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from shmppo.loggers.status import RunStatus
from shmppo.loggers.views import View, view_for

log = logging.getLogger(__name__)


class ConsoleDisplay:
    """Shows finished iterations, and the progress of the running one.

    A thread shows the progress, because the learner is busy or waits for its workers meanwhile. The thread only reads
    counters, so it cannot change a result.
    """

    TICK_SECONDS = 0.2  # until a resize of the terminal or a stop signal becomes visible

    def __init__(self, status: RunStatus) -> None:
        """Show that the run starts, and start the thread."""
        self._status = status
        self._view = view_for(status)
        self._lock = threading.Lock()  # held while the view is used
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._show_progress, name="display", daemon=True)
        if self._view is not None:
            self._use(lambda view: view.start())
            self._thread.start()

    def show(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int, *, last: bool) -> None:
        """Show the metrics of an iteration. The view skips them if its last update is too recent.

        Args:
            row: the iteration's row of metrics.csv.
            worker_seconds: [W] seconds that each worker took to sample its part of the rollout.
            memory: bytes used by all processes; 0 if unknown.
            last: whether this is the last iteration, which is always shown.
        """
        self._status.add(row, worker_seconds, memory)
        self._status.ended = last
        self._use(lambda view: view.update(finished=True, force=last))

    def _show_progress(self) -> None:
        while not self._closed.wait(self.TICK_SECONDS):
            self._use(lambda view: view.update(finished=False, force=False))

    def _use(self, call: Callable[[View], None]) -> None:
        """Call a method of the view. If the output is gone, for example a closed pipe, end the display."""
        with self._lock:
            if self._view is None:
                return
            try:
                call(self._view)
            except (OSError, ValueError) as error:  # ValueError: the file is closed
                self._view = None
                log.warning("the output cannot be written (%s); the run continues without a display", error)

    def close(self) -> None:
        """End the display. Safe to call twice."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._use(lambda view: view.close())
        with self._lock:
            self._view = None
