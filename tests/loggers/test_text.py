"""Bars, sparklines, numbers, durations, and paths, for every encoding of a terminal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shmppo.loggers.text import ASCII, BLOCKS, clock, glyphs_for, number, printable
from shmppo.utils.files import short_path


def test_a_sparkline_shows_means_of_equal_parts() -> None:
    assert BLOCKS.sparkline([math.nan, 0, 7], 10) == "▁█"
    assert BLOCKS.sparkline([0, 2, 4, 6], 2) == "▁█"
    assert BLOCKS.sparkline([math.nan], 5) == ""
    assert ASCII.sparkline([0, 7], 10) == "_#"


def test_bars_and_levels() -> None:
    assert BLOCKS.bar(0.5, 4) == "██░░"
    assert ASCII.bar(2.0, 4) == "####"
    assert BLOCKS.each_level([0, 0.5, 1]) == "▁▅█"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.873, "0.873"),
        (-0.412, "-0.412"),
        (3.2e-5, "3.2e-05"),
        (0.0123, "0.0123"),
        (0.0, "0.000"),
        (9.5, "9.500"),
        (48.66, "48.66"),
        (195.25, "195.2"),
        (-12345.6, "-12,345.6"),
        (1234567.0, "1,234,567"),
        (1e12, "1.000e+12"),
        (math.nan, "-"),
        (math.inf, "inf"),
    ],
)
def test_numbers_keep_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_durations() -> None:
    assert clock(3725.9) == "1:02:05"
    assert clock(None) == "-:--:--"


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no-such-encoding", ASCII)],
)
def test_a_terminal_gets_only_characters_that_it_can_show(encoding: str | None, glyphs: object) -> None:
    assert glyphs_for(encoding) is glyphs


def test_characters_of_ascii_displays_are_ascii_and_differ() -> None:
    ASCII.bar(0.5, 4).encode("ascii")
    assert len(set(ASCII.phases)) == len(ASCII.phases) == len(BLOCKS.phases)
    assert len(ASCII.levels) == len(BLOCKS.levels)
    assert printable("λ…", "ascii") == "\\u03bb\\u2026"
    assert printable("λ…", "utf-8") == "λ…"


def test_a_path_is_relative_where_that_is_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs" / "a") == "runs/a"
    assert short_path(Path("/x")) == "/x"
