"""The display of a run: a panel in a terminal, lines in a file or pipe, and a progress bar in a notebook.

With --quiet nothing is shown.
"""

from __future__ import annotations

import html
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Group
from rich.live import Live

from shmppo.errors import print_text
from shmppo.loggers.panel import RunPanel
from shmppo.loggers.status import RunStatus, count, evaluation_text
from shmppo.loggers.text import clock, number

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


class View:
    """One way to show a run. No two threads call its methods at the same time.

    Attributes:
        row_seconds: least time between two drawings of finished iterations.
        progress_seconds: time between two drawings while an iteration runs.
    """

    row_seconds, progress_seconds = 0.5, 1.0  # drawing takes about 5 ms

    def __init__(self, status: RunStatus) -> None:
        self._status = status

    def draw(self) -> None:
        """Show the current state."""

    def close(self) -> None:
        """End the display. What it has shown of finished iterations stays visible."""


def view_for(status: RunStatus) -> View | None:
    """Return the view for this process's output, or None if there is no output."""
    if status.config.quiet:
        return None
    ipython: Any = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return NotebookView(status)
    if sys.stdout is None or sys.stdout.closed:
        return None
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return TerminalView(status)
    return LineView(status)


class LineView(View):
    """Prints one line at the start, and then at most one line every ten seconds."""

    row_seconds = progress_seconds = 10.0

    def __init__(self, status: RunStatus) -> None:
        super().__init__(status)
        self._said: set[str] = set()
        self._shown = status.iteration
        iterations = count(status.config.last_iteration, "iteration")
        steps = f"{iterations} of {status.config.batch_steps:,} steps"
        again = f", resumed at iteration {status.iteration:,}" if status.iteration else ""
        print_text(f"{status.directory}: {status.title}, {steps}{again}")

    def draw(self) -> None:
        """Print what is new: sentences, and the last iteration or else the progress of the running one."""
        status = self._status
        sentences = [*filter(None, [status.stopping]), *(f"warning: {note}" for note in status.notes)]
        news = [text for text in sentences if text not in self._said]
        self._said.update(news)
        if status.iteration > self._shown:
            self._shown = status.iteration
            news.append(row_line(status))
        elif not news and not status.ended:
            where = f"iteration {status.iteration + 1:,}: " if status.timer else ""
            news.append(where + status.activity)
        if news:
            print_text("\n".join(news))


def row_line(status: RunStatus) -> str:
    """Return one line for the last finished iteration."""
    row = status.row
    assert row is not None
    return (
        f"iteration {status.iteration:,}/{status.config.last_iteration:,}  "
        f"steps {row['env_steps']:,.0f}/{status.total_steps:,}  return {status.mean_return}  "
        + (f"failed {row['failed_episodes']:,.0f}  " if row["failed_episodes"] > 0 else "")
        + "".join(f"{name} {value}  " for name, value in status.info.items())
        + (f"evaluation {evaluation_text(status.evaluation)}  " if status.evaluation else "")
        + f"{row['steps_per_second']:,.0f} steps/s  approx_kl {number(row['approx_kl'])}  "
        f"{clock(status.elapsed)} elapsed, {clock(status.remaining)} left"
    )


class TerminalView(View):
    """Draws the panel in place. The last panel stays visible."""

    def __init__(self, status: RunStatus) -> None:
        super().__init__(status)
        # The cursor stays in an empty line. There the terminal's "^C" after Ctrl-C wraps no line.
        self._live = Live(Group(RunPanel(status), ""), auto_refresh=False)
        self._live.start(refresh=True)

    def draw(self) -> None:
        self._live.refresh()

    def close(self) -> None:
        self._live.transient = self._status.row is None  # a failed start leaves no panel
        self._live.stop()


class NotebookView(View):
    """Updates a progress bar in the output of a notebook's cell."""

    def __init__(self, status: RunStatus) -> None:
        super().__init__(status)
        display: Any = importlib.import_module("IPython.display")
        self._handle = display.display(self._content(), raw=True, display_id=True)

    def draw(self) -> None:
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        status = self._status
        state = row_line(status) if status.row is not None else status.activity
        lines = [f"{status.title}  ({status.directory})", state, status.stopping, *status.notes]
        text = "\n".join(filter(None, lines))
        share = min(status.steps / status.total_steps, 1.0)
        bar = f'<progress value="{share:.4f}" max="1" style="width: 100%"></progress>'
        return {"text/plain": text, "text/html": f"{bar}<pre>{html.escape(text)}</pre>"}
