"""Paths that users give."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmppo.errors import ConfigError
from shmppo.utils.files import complete_rows, make_parent_directory


def test_a_name_that_is_too_long_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--video \S+ cannot be written: .*File name too long.*; name another file"):
        make_parent_directory(tmp_path / ("x" * 300 + ".mp4"), "--video")


def test_a_row_that_was_written_only_in_part_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for part in ("2", "2,3", "2,3,45"):
        path.write_text(f"a,b,c\n1,2,3\n{part}")
        assert complete_rows(path) == [{"a": "1", "b": "2", "c": "3"}]
    path.write_text("a,b,c\n1,2,3\n2,3,45\n")
    assert len(complete_rows(path)) == 2
