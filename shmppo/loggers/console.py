"""The live view of a run in a terminal, readable at 80 columns; plain lines elsewhere; nothing with --quiet."""

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
SHOWN = {
    "environment": ("█", "green"),
    "inference": ("▓", "cyan"),
    "wait": ("░", "red"),
    "gradient": ("█", "blue"),
    "optimizer": ("▓", "magenta"),
    "other": ("▒", "yellow"),
}
"""Character and color of each part of the phase bar; phases that are not here count as other."""


class ConsoleDisplay:
    """Draws the latest row of a run, not more often than an eye can follow."""

    REFRESH_SECONDS = 0.5  # drawing costs about 5 ms
    LINE_SECONDS = 10.0
    REMEMBERED = 480  # returns that the sparkline is drawn from, at most

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._due = 0.0
        self._history: list[float] = []  # of every `_every`-th iteration
        self._every = 1
        self._iterations = 0
        self._live: Any = None
        if not config.quiet and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=False)
            self._live.start()

    def show(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int, *, last: bool) -> None:
        """Draw the state after an iteration, unless the last drawing is too recent.

        Args:
            row: what metrics.csv got.
            worker_seconds: [W] seconds that each worker took to sample its part of the rollout.
            memory: bytes in use by all processes, 0 where the system does not tell.
        """
        self._remember(row["return_mean_100"])
        now = time.monotonic()
        if self._config.quiet or (now < self._due and not last):
            return
        if self._live is not None:
            self._due = now + self.REFRESH_SECONDS
            self._live.update(self.panel(row, worker_seconds, memory), refresh=True)
        else:
            self._due = now + self.LINE_SECONDS
            print(
                f"iteration {row['iteration']:.0f}/{self._config.last_iteration}  steps {row['env_steps']:,.0f}  "
                f"return {row['return_mean_100']:.1f}  {row['steps_per_second']:,.0f} steps/s  kl {row['approx_kl']:.4f}",
                flush=True,
            )

    def _remember(self, value: float) -> None:
        """Keep points all over the run, not more of them the longer it is."""
        if self._iterations % self._every == 0:
            self._history.append(value)
        self._iterations += 1
        if len(self._history) > self.REMEMBERED:
            del self._history[1::2]
            self._every *= 2

    def panel(self, row: dict[str, float], worker_seconds: Sequence[float], memory: int) -> Panel:
        """Everything that is shown, as one rich renderable."""
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
        last = self._config.last_iteration
        left = (last - row["iteration"]) * row["wall_seconds"] / max(row["iteration"], 1)
        return [
            ("iteration", f"{row['iteration']:.0f} / {last}", "steps", f"{row['env_steps']:,.0f}"),
            ("progress", bar(row["iteration"] / last, 24), "time left", clock(left)),
            ("return (100)", f"{row['return_mean_100']:.1f}", "length (100)", f"{row['length_mean_100']:.0f}"),
            ("", sparkline(self._history, 24), "episodes", f"{row['episodes']:,.0f}"),
            ("steps/s", f"{row['steps_per_second']:,.0f}", "memory", f"{memory / 2**20:,.0f} MiB" if memory else "?"),
            ("KL", f"{row['approx_kl']:.4f}", "clip fraction", f"{row['clip_fraction']:.3f}"),
            ("entropy", f"{row['entropy']:.3f}", "explained var.", f"{row['explained_variance']:.3f}"),
            ("policy loss", f"{row['policy_loss']:.4f}", "value loss", f"{row['value_loss']:.4f}"),
            ("gradient norm", f"{row['gradient_norm']:.3f}", "learning rate", f"{row['learning_rate']:.2e}"),
        ]

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def phase_bar(row: dict[str, float], width: int) -> Text:
    """Two lines: where the iteration's time went as one bar of `width` cells, and the names of its parts."""
    from rich.text import Text

    seconds = dict.fromkeys(SHOWN, 0.0)
    for phase in PHASES:
        seconds[phase if phase in SHOWN else "other"] += row[f"{phase}_seconds"]
    whole = sum(seconds.values())
    text, names = Text(no_wrap=True), Text(no_wrap=True)
    end = 0.0
    for name, (character, color) in SHOWN.items():
        begin, end = end, end + seconds[name] / whole
        text.append(character * (round(end * width) - round(begin * width)), color)
        names.append(character, color)
        sign = "%" if name == "environment" else ""  # one says it for all: the line is full
        names.append(f"{name} {100 * seconds[name] / whole:.0f}{sign} ")
    names.rstrip()
    return Text("\n").join([text, names])


def worker_line(worker_seconds: Sequence[float], collect_seconds: float, width: int) -> Text:
    """One line: for each worker the share of sampling that it was busy, and who the others waited for."""
    from rich.text import Text

    busy = [min(seconds / max(collect_seconds, 1e-12), 1.0) for seconds in worker_seconds]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    mean = sum(busy) / len(busy)
    words = f"busy while sampling {mean:.0%}  slowest worker {slowest} "
    if len(busy) <= 4:
        parts = [f"{w} {bar(share, 6)} {share:.0%}" for w, share in enumerate(busy)]
        shown = "  ".join(parts) if len(words) + len("  ".join(parts)) <= width else levels(busy)
    else:
        shown = levels(busy)
    return Text(f"{words} {shown}"[:width], no_wrap=True)


def levels(shares: Sequence[float]) -> str:
    """One character per share, 0 … 1."""
    return "".join(LEVELS[min(int(share * len(LEVELS)), len(LEVELS) - 1)] for share in shares)


def bar(share: float, width: int) -> str:
    """A bar of `width` cells, `share` of it full."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def sparkline(values: Sequence[float], width: int) -> str:
    """The values in `width` characters, each a mean over its part; blank where nothing is known yet."""
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
    """h:mm:ss"""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
