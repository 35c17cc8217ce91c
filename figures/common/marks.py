"""Marks that several figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEUTRAL = "#BBBBBB"
"""Fill color of what is only there for comparison."""
REFERENCE_LINE: dict[str, Any] = {"color": "#707070", "linewidth": 1.0, "linestyle": ":"}
"""Style of targets, limits, and ideal lines."""


def write_values(axis: Axes, places: Sequence[float], ends: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text to the right of each horizontal bar, a fixed distance beyond its end.

    Args:
        axis: the panel.
        places: y coordinates of the bars.
        ends: x coordinates of the ends of the bars, or of their whiskers.
        texts: the texts.
    """
    for place, end, text in zip(places, ends, texts, strict=True):
        axis.annotate(text, (end, place), (5, 0), textcoords="offset points", verticalalignment="center", fontsize=8)
