"""The ways to show a run: a panel in a terminal, lines in a file or pipe, and a progress bar in a notebook."""

from __future__ import annotations

import html
import importlib
import os
import sys
from typing import Any, Protocol

from shmppo.errors import print_text
from shmppo.loggers.status import RunStatus, count, evaluation_text
from shmppo.loggers.text import clock, number


class View(Protocol):
    """One way to show a run. No two threads call its methods at the same time.

    Attributes:
        row_seconds: least time between two drawings of finished iterations.
        progress_seconds: time between two drawings while an iteration runs.
    """

    row_seconds: float
    progress_seconds: float

    def draw(self) -> None:
        """Show the current state."""

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
    """Prints one line at the start, and then at most one line every ten seconds."""

    row_seconds = progress_seconds = 10.0

    def __init__(self, status: RunStatus) -> None:
        self._status = status
        self._said: set[str] = set()
        self._shown = status.iteration
        iterations = count(status.config.last_iteration, "iteration")
        steps = f"{iterations} of {status.config.batch_steps:,} steps"
        again = f", resumed at iteration {status.iteration:,}" if status.iteration else ""
        print_text(f"{status.directory}: {status.title}, {steps}{again}")

    def draw(self) -> None:
        """Print what is new: sentences, and the last iteration or else the progress of the running one."""
        status = self._status
        news = [status.stopping] if status.stopping else []
        news += [f"warning: {note}" for note in status.notes]
        news = [text for text in news if text not in self._said]
        self._said.update(news)
        if status.iteration > self._shown:
            self._shown = status.iteration
            news.append(row_line(status))
        elif not news and not status.ended:
            where = f"iteration {status.iteration + 1:,}: " if status.timer else ""
            news.append(where + status.activity)
        if news:
            print_text("\n".join(news))

    def close(self) -> None:
        """See `View.close`."""


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


class TerminalView:
    """Draws the panel in place. The last panel stays visible."""

    row_seconds, progress_seconds = 0.5, 1.0  # drawing takes about 5 ms

    def __init__(self, status: RunStatus) -> None:
        from rich.console import Group
        from rich.live import Live

        from shmppo.loggers.panel import RunPanel

        self._status = status
        # The cursor stays in an empty line. There the terminal's "^C" after Ctrl-C wraps no line.
        self._live = Live(Group(RunPanel(status), ""), auto_refresh=False)
        self._live.start(refresh=True)

    def draw(self) -> None:
        """See `View.draw`."""
        self._live.refresh()

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

    row_seconds, progress_seconds = 0.5, 1.0

    def __init__(self, status: RunStatus, display: Any) -> None:
        """display: the module IPython.display."""
        self._status = status
        self._handle = display.display(self._content(), raw=True, display_id=True)

    def draw(self) -> None:
        """See `View.draw`."""
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        status = self._status
        state = row_line(status) if status.row is not None else status.activity
        lines = [f"{status.title}  ({status.directory})", state]
        lines += [*filter(None, [status.stopping]), *status.notes]
        share = min(status.steps / status.total_steps, 1.0)
        bar = f'<progress value="{share:.4f}" max="1" style="width: 100%"></progress>'
        text = "<br>".join(html.escape(line) for line in lines)
        return {"text/plain": "\n".join(lines), "text/html": f"<div>{bar}<br><small>{text}</small></div>"}

    def close(self) -> None:
        """See `View.close`."""
