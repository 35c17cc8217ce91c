"""The cells of the notebook tutorial run one after the other, as in a kernel that is not started from a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import TESTS
from public_helpers import python

PAGE = TESTS.parent / "docs" / "tutorials" / "notebook.md"


@pytest.mark.long
def test_cells_run_in_order(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = re.findall(r"^```python\n(# cell \d\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [cell[:8] for cell in cells] == ["# cell 1", "# cell 2", "# cell 3"]
    assert "total_steps=100_000" in cells[0]
    code = "\n".join(cells).replace("total_steps=100_000", "total_steps=6_144, quiet=True")
    code = f"import matplotlib\nmatplotlib.use('agg')\n{code}\nassert total > 0"
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
