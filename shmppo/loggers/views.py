"""The ways to show a run: a panel in a terminal, lines in a file or pipe, and a progress bar in a notebook."""

from __future__ import annotations

import html
import importlib
import os
import sys
import time
from typing import Any, Protocol

from shmppo.loggers.status import RunStatus, count
from shmppo.loggers.text import clock, glyphs_for, number, printable

REFRESH_SECONDS = 0.5  # between two drawings of finished iterations; drawing takes about 5 ms
PROGRESS_SECONDS = 1.0  # between two drawings while an iteration runs
LINE_SECONDS = 10.0  # between plain lines


class View(Protocol):
    """One way to show a run. No two threads call its methods at the same time."""

    def start(self) -> None:
        """Show that the run starts."""

    def update(self, *, finished: bool, force: bool) -> None:
        """Show the current state, unless the last update is too recent.

        Args:
            finished: whether an iteration has just finished.
            force: whether to show it in any case.
        """

    def close(self) -> None:
        """End the display. What it has shown of finished iterations stays visible."""


def view_for(status: RunStatus) -> View | None:
    """Return the view for this process's output, or None if there is no output."""
    if status.config.quiet:
        return None
    if (kernel := _notebook()) is not None:
        return NotebookView(status, kernel)
    if sys.stdout is None or sys.stdout.closed:
        return None
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return TerminalView(status)
    return LineView(status)


class LineView:
    """Prints one line at the start, and then at most one line every LINE_SECONDS."""

    def __init__(self, status: RunStatus) -> None:
        self._status = status
        self._next_row = 0.0
        self._next_progress = 0.0
        self._said_stopping = False
        self._said_notes = 0

    def start(self) -> None:
        """See `View.start`."""
        status, config = self._status, self._status.config
        iterations = count(config.last_iteration, "iteration")
        again = f", resumed at iteration {status.iteration:,}" if status.iteration else ""
        self._print(f"{status.directory}: {status.title}, {iterations} of {config.batch_steps:,} steps{again}")
        self._print_notes()
        self._next_progress = time.monotonic() + LINE_SECONDS

    def _print_notes(self) -> None:
        for note in self._status.notes[self._said_notes :]:
            self._print(f"warning: {note}")
        self._said_notes = len(self._status.notes)

    def update(self, *, finished: bool, force: bool) -> None:
        """See `View.update`."""
        status, now = self._status, time.monotonic()
        if (stopping := status.stopping) and not self._said_stopping:
            self._said_stopping = True
            self._print(stopping)
        self._print_notes()
        if finished and status.row is not None:
            if force or now >= self._next_row:
                self._print(row_line(status))
                self._next_row = self._next_progress = now + LINE_SECONDS
        elif now >= self._next_progress:
            where = f"iteration {status.iteration + 1:,}: " if status.ready else ""
            self._print(where + status.activity)
            self._next_progress = now + LINE_SECONDS

    def _print(self, text: str) -> None:
        print(printable(text, sys.stdout.encoding), flush=True)

    def close(self) -> None:
        """See `View.close`."""


def row_line(status: RunStatus) -> str:
    """Return one line for the last finished iteration."""
    row = status.row
    assert row is not None
    return (
        f"iteration {status.iteration:,}/{status.config.last_iteration:,}  "
        f"steps {row['env_steps']:,.0f}/{status.total_steps:,}  return {status.mean_return}  "
        f"{row['steps_per_second']:,.0f} steps/s  approx_kl {number(row['approx_kl'])}  "
        f"{clock(status.elapsed)} elapsed, {clock(status.remaining)} left"
    )


class TerminalView:
    """Draws the panel in place. The last panel stays visible."""

    def __init__(self, status: RunStatus) -> None:
        from rich.live import Live

        self._status = status
        self._live = Live(auto_refresh=False)
        self._console = self._live.console
        self._glyphs = glyphs_for(self._console.encoding)
        self._next_row = self._next_progress = 0.0
        self._width = self._height = 0  # of the last drawing
        self._stopping = False

    def start(self) -> None:
        """See `View.start`."""
        self._live.start()
        self._draw()

    def update(self, *, finished: bool, force: bool) -> None:
        """See `View.update`."""
        now = time.monotonic()
        due = now >= (self._next_row if finished else self._next_progress)
        resized = self._panel_width() != self._width
        stopping = self._status.stopping is not None
        if force or due or resized or stopping != self._stopping:
            self._stopping = stopping
            self._draw()
            self._next_row, self._next_progress = now + REFRESH_SECONDS, now + PROGRESS_SECONDS

    def _panel_width(self) -> int:
        from shmppo.loggers.panel import MAX_WIDTH, MIN_WIDTH

        return min(max(self._console.width, MIN_WIDTH), MAX_WIDTH)

    def _draw(self) -> None:
        from rich.console import Group

        from shmppo.loggers.panel import build_panel

        width = self._panel_width()
        if width < self._width:
            self._erase_wrapped(width)
        warning = "\n".join(self._status.notes)
        panel = build_panel(self._status, width, self._glyphs, warning)
        # The cursor stays in an empty line. There the terminal's "^C" after Ctrl-C wraps no line.
        self._live.update(Group(panel, ""), refresh=True)
        self._width, self._height = width, len(self._console.render_lines(panel))

    def _erase_wrapped(self, width: int) -> None:
        """Erase the rows that the old panel needs in addition since the terminal became narrower.

        Terminals wrap each of its lines then. Live erases only as many rows as the old panel had lines.
        """
        from rich.control import Control
        from rich.segment import ControlType

        rows = self._height * (-(-self._width // width) - 1)
        erase: Any = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)]
        self._console.control(Control(*(erase * rows)))

    def close(self) -> None:
        """See `View.close`."""
        self._live.transient = self._status.row is None  # a failed start leaves no panel
        self._live.stop()


def _notebook() -> Any:
    """Return IPython's display module if this process is the kernel of a notebook, else None."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return importlib.import_module("IPython.display") if hasattr(shell, "kernel") else None


class NotebookView:
    """Updates a progress bar in the output of a notebook's cell."""

    def __init__(self, status: RunStatus, display: Any) -> None:
        """display: the module IPython.display."""
        self._status, self._display = status, display
        self._next_update = 0.0
        self._handle: Any = None
        self._stopping = False

    def start(self) -> None:
        """See `View.start`."""
        self._handle = self._display.display(self._content(), raw=True, display_id=True)

    def update(self, *, finished: bool, force: bool) -> None:
        """See `View.update`."""
        now = time.monotonic()
        stopping = self._status.stopping is not None
        if force or stopping != self._stopping or now >= self._next_update:
            self._stopping = stopping
            self._handle.update(self._content(), raw=True)
            self._next_update = now + (REFRESH_SECONDS if finished else PROGRESS_SECONDS)

    def _content(self) -> dict[str, str]:
        status = self._status
        state = row_line(status) if status.row is not None else status.activity
        lines = [f"{status.title}  ({status.directory})", state]
        lines += [*filter(None, [status.stopping]), *status.notes]
        share = min(status.steps / max(status.total_steps, 1), 1.0)
        bar = f'<progress value="{share:.4f}" max="1" style="width: 100%"></progress>'
        text = "<br>".join(html.escape(line) for line in lines)
        return {"text/plain": "\n".join(lines), "text/html": f"<div>{bar}<br><small>{text}</small></div>"}

    def close(self) -> None:
        """See `View.close`."""
