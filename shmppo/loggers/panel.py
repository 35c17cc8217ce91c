"""The panel of a run in a terminal, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from shmppo.loggers.status import RunStatus, evaluation_text
from shmppo.loggers.text import LEVELS, clock, number, show_levels, sparkline
from shmppo.utils.phase_timer import PHASES

BAR_PHASES = {
    "environment": ("green", "env"),
    "inference": ("cyan", "infer"),
    "wait": ("red", "wait"),
    "gradient": ("blue", "grad"),
    "optimizer": ("magenta", "optim"),
    "other": ("yellow", "other"),
}
"""Color and short name of each part of the phase bar. All other phases are added to "other"."""


class RunPanel:
    """The panel of a run. rich draws it for the width and the encoding of a console."""

    def __init__(self, status: RunStatus) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status, width = self._status, options.max_width - 4
        state = Text(status.stopping, "bold yellow") if status.stopping else Text(status.activity, "dim")
        counters = Text.assemble(
            ("iteration ", "bold"),
            f"{status.iteration:,} / {status.config.last_iteration:,}",
            ("   steps ", "bold"),
            f"{status.steps:,} / {status.total_steps:,}",
        )
        lines: list[Text | Table] = [counters, _progress(status), state]
        if row := status.row:
            lines.append(_return_line(status, width))
            if status.evaluation:
                lines.append(Text.assemble(("evaluation     ", "bold"), evaluation_text(status.evaluation)))
            lines.append(_metrics(row, status, width))
            lines += [*phase_bar(row, width)]
            lines.append(worker_line(status.worker_seconds, row["collect_seconds"]))
        for line in lines:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        lines += [Text(note, "yellow") for note in status.notes]
        yield Panel(Group(*lines), title=escape(f"shmppo  {status.title}"), subtitle=escape(status.directory))


def _progress(status: RunStatus) -> Table:
    """Build one line: a bar that fills the width, the share, and the elapsed and remaining time."""
    share = min(status.steps / status.total_steps, 1.0)
    line = Table.grid(Column(ratio=1), Column(no_wrap=True), expand=True)
    end = f" {share:4.0%}  {clock(status.elapsed)} elapsed, {clock(status.remaining)} left"
    line.add_row(ProgressBar(1.0, share, complete_style="green", finished_style="green"), end)
    return line


def _return_line(status: RunStatus, width: int) -> Text:
    """Build one line: the mean return of the last 100 episodes, and a sparkline of its course."""
    text = Text.assemble(("return (100)   ", "bold"), f"{status.mean_return:<10}  ")
    return text.append(sparkline(status.history, max(width - len(text), 8)), "cyan")


def _metrics(row: dict[str, float], status: RunStatus, width: int) -> Table:
    """Build the table of metrics: two to four pairs of name and value per line."""
    failed = f" + {row['failed_episodes']:,.0f} failed" if row["failed_episodes"] > 0 else ""
    cells = [
        *status.info.items(),
        ("length (100)", number(row["length_mean_100"])),
        ("episodes", f"{row['episodes']:,.0f}{failed}"),
        ("steps/s", f"{row['steps_per_second']:,.0f}"),
        ("memory", f"{status.memory / 2**20:,.0f} MiB" if status.memory else "-"),
        ("approx KL", number(row["approx_kl"])),
        ("clip fraction", number(row["clip_fraction"])),
        ("entropy", number(row["entropy"])),
        ("explained var.", number(row["explained_variance"])),
        ("policy loss", number(row["policy_loss"])),
        ("value loss", number(row["value_loss"])),
        ("gradient norm", number(row["gradient_norm"])),
        ("learning rate", f"{row['learning_rate']:.2e}"),
    ]
    pairs = 2 if width < 110 else 3 if width < 150 else 4
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    for _ in range(pairs):
        table.add_column(width=14, style="bold", no_wrap=True)
        table.add_column(ratio=1, no_wrap=True)
    texts = [Text(text) for pair in cells for text in pair]  # names of the user may contain "["
    for k in range(0, len(texts), 2 * pairs):
        table.add_row(*texts[k : k + 2 * pairs])
    return table


def phase_bar(row: dict[str, float], width: int) -> tuple[Text, Text]:
    """Build two lines: a bar of `width` cells that splits the iteration's time by phase, and a legend."""
    seconds = dict.fromkeys(BAR_PHASES, 0.0)
    for phase in PHASES:
        seconds[phase if phase in BAR_PHASES else "other"] += row[f"{phase}_seconds"]
    whole = sum(seconds.values())
    bar, legend = Text(), Text()
    end = 0.0
    for name, (color, short) in BAR_PHASES.items():
        begin, end = end, end + seconds[name] / whole
        bar.append(LEVELS[-1] * (round(end * width) - round(begin * width)), color)
        legend.append(f"{name if width >= 74 else short} {seconds[name] / whole:.0%} ", color)
    return bar, legend


def worker_line(worker_seconds: Sequence[float], collect_seconds: float) -> Text:
    """Build one line: how busy each worker was during sampling, and the slowest worker."""
    busy = [min(seconds / max(collect_seconds, 1e-12), 1.0) for seconds in worker_seconds]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    shares = " ".join(f"{share:.0%}" for share in busy)
    return Text(
        f"busy while sampling {sum(busy) / len(busy):.0%}  slowest worker {slowest}  {show_levels(busy)}  {shares}"
    )
