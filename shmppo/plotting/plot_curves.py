"""What `shmppo plot` does with runs: draw their metrics as a figure or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shmppo.config.checks import require
from shmppo.plotting.curves import group_runs, read_run
from shmppo.plotting.plots import X_COLUMNS, caption_of, draw_metrics, draw_overview
from shmppo.plotting.report import write_report
from shmppo.plotting.style import save


def plot_curves(
    run_dirs: Sequence[Path],
    out: Path,
    *,
    metrics: Sequence[str] = (),
    x: Literal["steps", "seconds"] = "steps",
    labels: Sequence[str] = (),
) -> None:
    """Draw metrics of runs. Runs that differ only in their seed become one curve.

    Args:
        run_dirs: directories of the runs.
        out: file to write. A page if its name ends in .html.
        metrics: columns of metrics.csv or eval.csv, one panel each. Empty: an overview.
        x: the x axis of the metrics.
        labels: texts RUN_DIR=NAME, see `group_runs`.

    Raises:
        ConfigError: if matplotlib is missing, a run cannot be read, a run has no values of a metric, a label belongs to
            no run, or `out` cannot be written.
    """
    names = {}
    for text in labels:
        run_dir, _, name = text.partition("=")
        require(Path(run_dir) in run_dirs, f"--label {text}: no such run is plotted; write --label RUN_DIR=NAME")
        names[Path(run_dir)] = name
    groups = group_runs([read_run(run_dir) for run_dir in run_dirs], names)
    if out.suffix == ".html":
        return write_report(groups, out, metrics, X_COLUMNS[x])
    figure = draw_metrics(groups, metrics, X_COLUMNS[x]) if metrics else draw_overview(groups, X_COLUMNS[x])
    save(figure, out, caption_of(groups), others=("html",))
