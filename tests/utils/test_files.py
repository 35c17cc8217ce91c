"""Paths that users give."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmppo.errors import ConfigError
from shmppo.utils.files import make_parent_directory


def test_a_name_that_is_too_long_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--video \S+ cannot be written: .*File name too long.*; name another file"):
        make_parent_directory(tmp_path / ("x" * 300 + ".mp4"), "--video")
