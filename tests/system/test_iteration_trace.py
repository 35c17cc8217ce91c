"""One training iteration stays short enough to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from public_helpers import TESTS, python


@pytest.mark.long
def test_an_iteration_executes_few_files(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    result = python(TESTS / "iteration_trace.py", cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    lines, files = result.stdout.splitlines()[-1].split(" in ")
    assert int(files.split()[0]) <= 39, result.stdout
    assert int(lines) <= 5500, result.stdout
    story = {
        "loop", "share", "worker_pool", "mailbox", "worker", "collector", "actor", "minibatches", "loss", "learner",
    }  # fmt: skip
    traced = {Path(line.split()[-1]).stem for line in result.stdout.splitlines()[:-1]}
    assert story <= traced
