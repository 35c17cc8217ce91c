"""Pieces of text for displays: bars of characters, numbers, and durations."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
"""Characters from low to high; the highest one is also the full part of a bar."""


def show_levels(shares: Sequence[float]) -> str:
    """Show each share (0 … 1) as one of LEVELS."""
    return "".join(LEVELS[min(int(share * len(LEVELS)), len(LEVELS) - 1)] for share in shares)


def sparkline(values: Sequence[float], width: int) -> str:
    """Show the values in at most `width` characters, each the mean of an equal part. NaN values are skipped."""
    known = [value for value in values if not math.isnan(value)]
    cells = min(width, len(known))
    parts = [known[k * len(known) // cells : (k + 1) * len(known) // cells] for k in range(cells)]
    means = [sum(part) / len(part) for part in parts]
    low = min(means, default=0.0)
    height = max(means, default=0.0) - low
    return show_levels([(mean - low) / height if height else 0.0 for mean in means])


def number(value: float) -> str:
    """Format a metric with three or four significant digits, so that small values stay visible."""
    size = abs(value)
    if math.isnan(size):
        return "-"
    if size >= 1e9:
        return f"{value:.3e}"
    for least, digits in ((1e5, 0), (100, 1), (10, 2), (0.1, 3), (1e-3, 4)):
        if size >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.1e}" if size else "0.000"


def clock(seconds: float | None) -> str:
    """Format a duration as h:mm:ss. An unknown duration is "-:--:--"."""
    if seconds is None:
        return "-:--:--"
    total = int(seconds)
    return f"{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"
