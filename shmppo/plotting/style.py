"""The style of all figures: palette, font sizes, panels, number formats, and the file that is written.

A figure is 8 inches wide, which is 100 pixels per inch where it is shown 800 pixels wide. A font of 8 points then has a
height of 11 pixels.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shmppo.config.checks import require
from shmppo.errors import ConfigError
from shmppo.utils.files import config_error_if_unwritable, make_parent_directory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito: readers with any color vision can distinguish these colors, also in gray.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255", "#BBBBBB")
FORMATS = ("pdf", "png", "svg")
"""File formats. Others that matplotlib lists need further programs."""
FIGURE_WIDTH = 8.0
"""Inches."""
CAPTION_SIZE = 7.5
CAPTION_COLUMNS = 145
HEADLINE_COLUMNS = 92
"""Characters per line. A line of this length is nearly as wide as the figure."""
RC_PARAMS: Any = {  # the keys are literals in some versions of matplotlib, so a dict of str is refused
    # Keep text as text and derive ids from the content, so that the same numbers give the same file.
    "svg.fonttype": "none", "svg.hashsalt": "shmppo",
    "font.size": 8.5, "axes.labelsize": 8.5, "axes.titlesize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "legend.fontsize": 8, "figure.titlesize": 10.5, "figure.titleweight": "bold",
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "legend.frameon": False,
    "text.parse_math": False, "lines.linewidth": 1.5, "lines.markersize": 4,
    "figure.constrained_layout.w_pad": 0.08, "figure.constrained_layout.h_pad": 0.06,
}  # fmt: skip


def new_figure(
    rows: int, columns: int, *, height: float = 2.3, headline: str = "", **options: Any
) -> tuple[Figure, list[Axes]]:
    """Make a figure of rows × columns panels; returns its axes row by row.

    Args:
        rows: rows of panels.
        columns: columns of panels. Together they are as wide as every figure.
        height: of a row, in inches.
        headline: title of the whole figure; one sentence that says what it shows.
        options: passed to `Figure.subplots`.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib; install it with: pip install 'shmppo[plot]'") from error
    rcParams.update(RC_PARAMS)
    figure = Figure(figsize=(FIGURE_WIDTH, height * rows), layout="constrained")
    if headline:
        figure.suptitle("\n".join(textwrap.wrap(headline, HEADLINE_COLUMNS)), x=0.012, horizontalalignment="left")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    return figure, axes


def label(axis: Axes, x: str, y: str, title: str = "") -> None:
    """Set the axis labels and the title of a panel."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title)


def group_thousands(axis: Axes, which: Literal["x", "y", "both"] = "both", ticks: int = 4) -> None:
    """Write the numbers of a linear axis with thousands separators and without a common factor.

    Args:
        axis: the panel.
        which: the axes to format.
        ticks: most intervals between ticks on the x axis, where long numbers would touch.
    """
    if which in ("x", "both"):
        axis.locator_params(axis="x", nbins=ticks)
        axis.xaxis.set_major_formatter(_grouped)
    if which in ("y", "both"):
        axis.yaxis.set_major_formatter(_grouped)


def _grouped(value: float, _position: float) -> str:
    """Format a tick: 12,500, 0.25, or −3."""
    rounded = round(value, 10)  # a tick at 0.1 + 0.2 has the label 0.3
    text = f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,.10f}".rstrip("0")
    return "0" if text == "-0" else text.replace("-", "−")


def save(figure: Figure, path: Path, caption: str = "", *, others: tuple[str, ...] = ()) -> None:
    """Write the figure, with a caption below it.

    Args:
        figure: the figure.
        path: file to write.
        caption: text below the figure.
        others: formats of other files that the user could name instead, for the message.

    Raises:
        ConfigError: if the format is none of FORMATS, or if the file cannot be written.
    """
    if caption:
        lines = [line for part in caption.split("\n") for line in textwrap.wrap(part, CAPTION_COLUMNS)]
        figure.supxlabel(
            "\n".join(lines), x=0.012, horizontalalignment="left", fontsize=CAPTION_SIZE, fontweight="normal",
            color="#555555",
        )  # fmt: skip
    ending = path.suffix.removeprefix(".").lower()
    require(ending in FORMATS, f"--out {path}: the file name's ending must be one of {', '.join((*FORMATS, *others))}")
    make_parent_directory(path, "--out")
    # Without the date and the version of matplotlib, the same numbers give the same file.
    metadata = {"Date": None, "Creator": None} if ending == "svg" else None
    with config_error_if_unwritable(f"--out {path}", "name another file"):
        figure.savefig(path, dpi=160, metadata=metadata)
