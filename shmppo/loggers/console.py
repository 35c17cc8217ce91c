"""Live display of a run in a terminal, 80 columns wide.

If the output is not a terminal, plain lines are printed instead. With --quiet nothing is printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmppo.config.train_config import TrainConfig
from shmppo.utils.phase_timer import PHASES

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.text import Text

WIDTH = 80
LEVELS = "▁▂▃▄▅▆▇█"
"""Characters of sparklines, from low to high."""
BAR_PHASES = {
    "environment": ("█", "green"),
    "inference": ("▓", "cyan"),
    "wait": ("░", "red"),
    "gradient": ("█", "blue"),
    "optimizer": ("▓", "magenta"),
    "other": ("▒", "yellow"),
}
"""Character and color of each part of the phase bar. All other phases are added to "other"."""


class ConsoleDisplay:
    """Shows the latest metrics of a run, at most every REFRESH_SECONDS."""

    REFRESH_SECONDS = 0.5  # in a terminal; drawing takes about 5 ms
    LINE_SECONDS = 10.0  # between plain lines
    MAX_HISTORY = 480  # points kept for the sparkline of returns

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._next_update = 0.0
        self._history: list[float] = []  # mean returns of every `_stride`-th iteration
        self._stride = 1
        self._iterations = 0
        self._live: Any = None
        if not config.quiet and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=False)
            self._live.start()

    def show(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int, *, last: bool) -> None:
        """Show the metrics of an iteration. Does nothing if the last update is too recent.

        Args:
            row: the iteration's row of metrics.csv.
            worker_seconds: [W] seconds that each worker took to sample its part of the rollout.
            memory: bytes used by all processes; 0 if unknown.
            last: whether this is the last iteration, which is always shown.
        """
        self._add_to_history(row["return_mean_100"])
        now = time.monotonic()
        if self._config.quiet or (now < self._next_update and not last):
            return
        if self._live is not None:
            self._next_update = now + self.REFRESH_SECONDS
            self._live.update(self.panel(row, worker_seconds, memory), refresh=True)
        else:
            self._next_update = now + self.LINE_SECONDS
            print(
                f"iteration {row['iteration']:.0f}/{self._config.last_iteration}  steps {row['env_steps']:,.0f}  "
                f"return {row['return_mean_100']:.1f}  {row['steps_per_second']:,.0f} steps/s  "
                f"approx_kl {row['approx_kl']:.4f}",
                flush=True,
            )

    def _add_to_history(self, value: float) -> None:
        """Add a return to the history.

        When the history is full, every second point is dropped. It then covers the whole run with fewer points.
        """
        if self._iterations % self._stride == 0:
            self._history.append(value)
        self._iterations += 1
        if len(self._history) > self.MAX_HISTORY:
            del self._history[1::2]
            self._stride *= 2

    def panel(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int) -> Panel:
        """Build the display. For the arguments, see `show`."""
        from rich.console import Group
        from rich.markup import escape
        from rich.panel import Panel
        from rich.table import Table

        config = self._config
        table = Table.grid(padding=(0, 2))
        for width in (13, 25, 14, 13):
            table.add_column(width=width, no_wrap=True)
        for cells in self._cells(row, memory):
            table.add_row(*cells)
        workers = f"{config.num_workers} workers" if config.num_workers else "no workers"
        ranks = f"{config.ranks} ranks of " if config.ranks > 1 else ""
        title = f"shmppo  {config.env_id}  {ranks}{config.num_envs} environments, {workers}"
        inside = WIDTH - 4
        group = Group(table, phase_bar(row, inside), worker_line(worker_seconds, row["collect_seconds"], inside))
        return Panel(group, title=escape(title), subtitle=escape(str(self._run_dir)), width=WIDTH)

    def _cells(self, row: dict[str, float], memory: int) -> list[tuple[str, str, str, str]]:
        """Build the lines of the table: two pairs of name and value per line."""
        last = self._config.last_iteration
        left = (last - row["iteration"]) * row["wall_seconds"] / max(row["iteration"], 1)
        return [
            ("iteration", f"{row['iteration']:.0f} / {last}", "steps", f"{row['env_steps']:,.0f}"),
            ("progress", bar(row["iteration"] / last, 24), "time left", clock(left)),
            ("return (100)", f"{row['return_mean_100']:.1f}", "length (100)", f"{row['length_mean_100']:.0f}"),
            ("", sparkline(self._history, 24), "episodes", f"{row['episodes']:,.0f}"),
            ("steps/s", f"{row['steps_per_second']:,.0f}", "memory", f"{memory / 2**20:,.0f} MiB" if memory else "?"),
            ("approx KL", f"{row['approx_kl']:.4f}", "clip fraction", f"{row['clip_fraction']:.3f}"),
            ("entropy", f"{row['entropy']:.3f}", "explained var.", f"{row['explained_variance']:.3f}"),
            ("policy loss", f"{row['policy_loss']:.4f}", "value loss", f"{row['value_loss']:.4f}"),
            ("gradient norm", f"{row['gradient_norm']:.3f}", "learning rate", f"{row['learning_rate']:.2e}"),
        ]

    def close(self) -> None:
        """Stop updating the terminal. The last display stays visible."""
        if self._live is not None:
            self._live.stop()


def phase_bar(row: dict[str, float], width: int) -> Text:
    """Build two lines: a bar of `width` cells that splits the iteration's time by phase, and a legend."""
    from rich.text import Text

    seconds = dict.fromkeys(BAR_PHASES, 0.0)
    for phase in PHASES:
        seconds[phase if phase in BAR_PHASES else "other"] += row[f"{phase}_seconds"]
    whole = sum(seconds.values())
    text, names = Text(no_wrap=True), Text(no_wrap=True)
    end = 0.0
    for name, (character, color) in BAR_PHASES.items():
        begin, end = end, end + seconds[name] / whole
        text.append(character * (round(end * width) - round(begin * width)), color)
        names.append(character, color)
        sign = "%" if name == "environment" else ""  # only once, because the line has no space for more
        names.append(f"{name} {100 * seconds[name] / whole:.0f}{sign} ")
    names.rstrip()
    return Text("\n").join([text, names])


def worker_line(worker_seconds: Sequence[float], collect_seconds: float, width: int) -> Text:
    """Build one line: how busy each worker was during sampling, and the slowest worker."""
    from rich.text import Text

    busy = [min(seconds / max(collect_seconds, 1e-12), 1.0) for seconds in worker_seconds]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    mean = sum(busy) / len(busy)
    label = f"busy while sampling {mean:.0%}  slowest worker {slowest} "
    if len(busy) <= 4:
        parts = [f"{w} {bar(share, 6)} {share:.0%}" for w, share in enumerate(busy)]
        shown = "  ".join(parts) if len(label) + len("  ".join(parts)) <= width else levels(busy)
    else:
        shown = levels(busy)
    return Text(f"{label} {shown}"[:width], no_wrap=True)


def levels(shares: Sequence[float]) -> str:
    """Show each share (0 … 1) as one character."""
    return "".join(LEVELS[min(int(share * len(LEVELS)), len(LEVELS) - 1)] for share in shares)


def bar(share: float, width: int) -> str:
    """Show a share (0 … 1) as a bar of `width` cells."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def sparkline(values: Sequence[float], width: int) -> str:
    """Show the values in at most `width` characters, each the mean of an equal part. NaN values are skipped."""
    known = [v for v in values if v == v]
    if not known:
        return ""
    cells = min(width, len(known))
    means = []
    for k in range(cells):
        part = known[k * len(known) // cells : (k + 1) * len(known) // cells]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    return "".join(LEVELS[int(7 * (m - low) / (high - low)) if high > low else 0] for m in means)


def clock(seconds: float) -> str:
    """Format a duration as h:mm:ss."""
    total = int(seconds)
    return f"{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"
