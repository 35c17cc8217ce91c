"""The display of a run on standard output. With --quiet nothing is shown. `views` has the ways to show a run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shmppo.loggers.status import RunStatus
from shmppo.loggers.views import View, view_for

log = logging.getLogger(__name__)


class ConsoleDisplay:
    """Shows finished iterations, and the progress of the running one.

    A thread shows the progress, because the learner is busy or waits for its workers meanwhile. The thread only reads
    counters, so it cannot change a result.
    """

    TICK_SECONDS = 0.2  # until a stop signal becomes visible

    def __init__(self, status: RunStatus) -> None:
        """Show that the run starts, and start the thread."""
        self._status = status
        self._lock = threading.Lock()  # held while the view is used or the status changes
        self._closed = threading.Event()
        self._view: View | None = None
        with self._output():
            self._view = view_for(status)
        self._news: tuple[str | None, int] = (None, 0)
        self._next_row, self._next_progress = 0.0, time.monotonic()
        self._thread: threading.Thread | None = None
        if self._view is not None:
            self._next_progress += self._view.progress_seconds
            self._thread = threading.Thread(target=self._show_progress, name="display", daemon=True)
            self._thread.start()

    def show(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int, *, last: bool) -> None:
        """Show the metrics of an iteration, unless the last drawing is too recent.

        Args:
            row: the iteration's row of metrics.csv.
            worker_seconds: [W] seconds that each worker took to sample its part of the rollout.
            memory: bytes used by all processes; 0 if unknown.
            last: whether this is the last iteration, which is always shown.
        """
        with self._lock:  # the thread may be drawing
            self._status.add(row, worker_seconds, memory)
            self._status.ended = last
        self._update(finished=True, force=last)

    def _show_progress(self) -> None:
        while not self._closed.wait(self.TICK_SECONDS):
            self._update(finished=False)

    def _update(self, *, finished: bool, force: bool = False) -> None:
        """Draw if it is time, or if there is a new sentence about the run."""
        with self._output():
            now, news = time.monotonic(), (self._status.stopping, len(self._status.notes))
            due = now >= (self._next_row if finished else self._next_progress)
            if self._view is not None and (force or due or news != self._news):
                self._view.draw()
                self._news = news
                self._next_row, self._next_progress = now + self._view.row_seconds, now + self._view.progress_seconds

    @contextmanager
    def _output(self) -> Iterator[None]:
        """Use the view. If the output is gone, for example a closed pipe, end the display."""
        with self._lock:
            try:
                yield
            except (OSError, ValueError) as error:  # ValueError: the file is closed, or lacks a character
                self._view = None
                log.warning("the output cannot be written (%s); the run continues without a display", error)

    def close(self) -> None:
        """End the display. Safe to call twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._output():
            if self._view is not None:
                self._view.close()
            self._view = None
