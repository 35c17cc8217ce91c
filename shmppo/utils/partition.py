"""Division of work into parts of nearly equal size."""

from __future__ import annotations


def partition(count: int, parts: int, index: int) -> range:
    """Divide 0 … count − 1 into `parts` contiguous ranges of nearly equal size, and return range `index`."""
    return range(index * count // parts, (index + 1) * count // parts)
