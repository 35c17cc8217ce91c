"""Pieces of text for displays: bars, sparklines, numbers, and durations. There is an ASCII version of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """The characters of bars and sparklines."""

    levels: str
    """Characters of sparklines, from low to high."""
    full: str
    """Filled part of a bar."""
    empty: str
    """Rest of a bar."""
    phases: str
    """Characters of the phase bar, one for each entry of `panel.BAR_PHASES`."""

    def bar(self, share: float, width: int) -> str:
        """Show a share (0 … 1) as a bar of `width` cells."""
        full = round(min(max(share, 0.0), 1.0) * width)
        return self.full * full + self.empty * (width - full)

    def each_level(self, shares: Sequence[float]) -> str:
        """Show each share (0 … 1) as one character."""
        top = len(self.levels) - 1
        return "".join(self.levels[min(int(share * len(self.levels)), top)] for share in shares)

    def sparkline(self, values: Sequence[float], width: int) -> str:
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
        top = len(self.levels) - 1
        return "".join(self.levels[int(top * (m - low) / (high - low)) if high > low else 0] for m in means)


BLOCKS = Glyphs(levels="▁▂▃▄▅▆▇█", full="█", empty="░", phases="█▓░█▓▒")
ASCII = Glyphs(levels="_.:-=+*#", full="#", empty=".", phases="#=.@%~")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the characters that a stream with this encoding can show."""
    try:
        (BLOCKS.levels + BLOCKS.empty + BLOCKS.phases).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def printable(text: str, encoding: str | None) -> str:
    """Replace what a stream with this encoding cannot show by escape sequences."""
    encoding = encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


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
