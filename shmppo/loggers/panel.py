"""The panel of a run in a terminal, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from shmppo.loggers.status import RunStatus
from shmppo.loggers.text import Glyphs, clock, number
from shmppo.utils.phase_timer import PHASES

MIN_WIDTH, MAX_WIDTH = 40, 240
BAR_PHASES = {
    "environment": ("green", "env"),
    "inference": ("cyan", "infer"),
    "wait": ("red", "wait"),
    "gradient": ("blue", "grad"),
    "optimizer": ("magenta", "optim"),
    "other": ("yellow", "other"),
}
"""Color and short name of each part of the phase bar. All other phases are added to "other"."""


def build_panel(status: RunStatus, width: int, glyphs: Glyphs, warning: str | None = None) -> Panel:
    """Build the panel.

    Args:
        status: of the run.
        width: of the panel in cells, at least MIN_WIDTH.
        glyphs: characters that the terminal can show.
        warning: a sentence to show, if any.
    """
    inside = width - 4
    lines = [_counters(status), _progress_line(status, inside, glyphs), Text(status.activity, "dim")]
    if status.stopping:
        lines[-1] = Text(status.stopping, "bold yellow")
    if row := status.row:
        lines += [return_line(status, inside, glyphs), *_metrics(row, status.memory, inside)]
        lines += [
            *phase_bar(row, inside, glyphs),
            worker_line(status.worker_seconds, row["collect_seconds"], inside, glyphs),
        ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    if warning:
        lines.append(Text(warning, "yellow"))
    return Panel(Group(*lines), title=escape(f"shmppo  {status.title}"), subtitle=escape(status.directory), width=width)


def _counters(status: RunStatus) -> Text:
    last = status.config.last_iteration
    return Text.assemble(
        ("iteration ", "bold"),
        f"{status.iteration:,} / {last:,}",
        ("   steps ", "bold"),
        f"{status.steps:,} / {status.total_steps:,}",
    )


def _progress_line(status: RunStatus, width: int, glyphs: Glyphs) -> Text:
    """Build one line: a bar that fills the width, the share, and the elapsed and remaining time."""
    share = min(status.steps / max(status.total_steps, 1), 1.0)
    end = f" {share:4.0%}  {clock(status.elapsed)} elapsed, {clock(status.remaining)} left"
    return Text.assemble((glyphs.bar(share, max(width - len(end), 4)), "green"), end)


def return_line(status: RunStatus, width: int, glyphs: Glyphs) -> Text:
    """Build one line: the mean return of the last 100 episodes, and a sparkline of its course."""
    text = Text.assemble(("return (100)   ", "bold"), f"{status.mean_return:<10}  ")
    text.append(glyphs.sparkline(status.history, max(width - len(text), 8)), "cyan")
    return text


def _metrics(row: dict[str, float], memory: int, width: int) -> list[Text]:
    """Build the table of metrics: two to four pairs of name and value per line."""
    cells = [
        ("length (100)", number(row["length_mean_100"])),
        ("episodes", f"{row['episodes']:,.0f}"),
        ("steps/s", f"{row['steps_per_second']:,.0f}"),
        ("memory", f"{memory / 2**20:,.0f} MiB" if memory else "-"),
        ("approx KL", number(row["approx_kl"])),
        ("clip fraction", number(row["clip_fraction"])),
        ("entropy", number(row["entropy"])),
        ("explained var.", number(row["explained_variance"])),
        ("policy loss", number(row["policy_loss"])),
        ("value loss", number(row["value_loss"])),
        ("gradient norm", number(row["gradient_norm"])),
        ("learning rate", f"{row['learning_rate']:.2e}"),
    ]
    columns = 2 if width < 110 else 3 if width < 150 else 4
    space = width // columns
    lines = []
    for k in range(0, len(cells), columns):
        line = Text()
        for name, value in cells[k : k + columns]:
            line.append(f"{name:<15}", "bold").append(f"{value:<{space - 15}}"[: space - 15])
        line.rstrip()
        lines.append(line)
    return lines


def phase_bar(row: dict[str, float], width: int, glyphs: Glyphs) -> tuple[Text, Text]:
    """Build two lines: a bar of `width` cells that splits the iteration's time by phase, and a legend."""
    seconds = dict.fromkeys(BAR_PHASES, 0.0)
    for phase in PHASES:
        seconds[phase if phase in BAR_PHASES else "other"] += row[f"{phase}_seconds"]
    whole = sum(seconds.values())
    bar, legend = Text(), Text()
    end = 0.0
    for (name, (color, short)), character in zip(BAR_PHASES.items(), glyphs.phases, strict=True):
        begin, end = end, end + seconds[name] / whole
        bar.append(character * (round(end * width) - round(begin * width)), color)
        legend.append(character, color)
        sign = "%" if name == "environment" else ""  # only once, because a narrow line has no space for more
        legend.append(f"{name if width >= 74 else short} {100 * seconds[name] / whole:.0f}{sign} ")
    legend.rstrip()
    return bar, legend


def worker_line(worker_seconds: Sequence[float], collect_seconds: float, width: int, glyphs: Glyphs) -> Text:
    """Build one line: how busy each worker was during sampling, and the slowest worker."""
    busy = [min(seconds / max(collect_seconds, 1e-12), 1.0) for seconds in worker_seconds]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    label = f"busy while sampling {sum(busy) / len(busy):.0%}  slowest worker {slowest}  "
    size = (width - len(label)) // len(busy) - len("00  100%  ")
    if size >= 4:
        return Text(label + "  ".join(f"{w} {glyphs.bar(share, size)} {share:.0%}" for w, share in enumerate(busy)))
    return Text(label + glyphs.each_level(busy))
