"""Sparklines, numbers, durations, and paths."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shmppo.loggers.text import clock, number, show_levels, sparkline
from shmppo.utils.files import short_path


def test_a_sparkline_shows_means_of_equal_parts() -> None:
    assert sparkline([math.nan, 0, 7], 10) == "▁█"
    assert sparkline([0, 2, 4, 6], 2) == "▁█"
    assert sparkline([math.nan], 5) == ""
    assert sparkline([3, 3], 5) == "▁▁"
    assert show_levels([0, 0.5, 1]) == "▁▅█"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.873, "0.873"), (-0.412, "-0.412"), (3.2e-5, "3.2e-05"), (0.0123, "0.0123"), (0.0, "0.000"), (9.5, "9.500"),
     (48.66, "48.66"), (195.25, "195.2"), (-12345.6, "-12,345.6"), (1234567.0, "1,234,567"), (1e12, "1.000e+12"),
     (math.nan, "-"), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_keep_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_durations() -> None:
    assert clock(3725.9) == "1:02:05"
    assert clock(None) == "-:--:--"


def test_a_path_is_relative_where_that_is_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs" / "a") == "runs/a"
    assert short_path(Path("/x")) == "/x"
