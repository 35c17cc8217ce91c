"""The style of figures: numbers with separators, texts that fit and can be read, and files that do not change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from figures.common.marks import write_values
from shmppo.plotting.style import group_thousands, label, new_figure, save


def texts(svg: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())


def drawn(path: Path) -> Path:
    """Draw a figure with one horizontal bar per row and long texts."""
    figure, axes = new_figure(1, 2, headline="A finding " * 15)
    for axis in axes:
        axis.barh([0, 1], [1_000_000, 12_500], xerr=[[0, 0], [500_000, 100]])
        write_values(axis, [0, 1], [1_500_000, 12_600], ["1,000,000", "12,500"])
        group_thousands(axis, "x")
        label(axis, "steps", "", "a panel")
    save(figure, path, "One sentence. " * 20 + "\nCommit 1234567.")
    return path


def test_numbers_have_thousands_separators_and_no_common_factor(tmp_path: Path) -> None:
    found = texts(drawn(tmp_path / "figure.svg"))
    assert {"1,000,000", "12,500", "0"} <= set(found)
    assert not [text for text in found if "1e" in text or re.search(r"\d{4}", text.removeprefix("Commit 1234567"))]


@pytest.mark.parametrize(("value", "text"), [(0.1 + 0.2, "0.3"), (-0.0, "0"), (-1250, "−1,250"), (0.0005, "0.0005")])
def test_a_tick_has_the_digits_that_it_needs(value: float, text: str) -> None:
    _, (axis,) = new_figure(1, 1)
    group_thousands(axis)
    assert axis.yaxis.get_major_formatter()(value) == text
