"""docs/metrics.md agrees with the code: its tables are the columns and keys of the files that a run writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import TESTS

from shmppo import TrainConfig, train
from shmppo.loggers.metrics import EVALUATION_GLOSSARY, GLOSSARY
from shmppo.ppo.kl_profile import COLUMNS
from shmppo.utils.phase_timer import PHASES

METRICS = (TESTS.parent / "docs" / "metrics.md").read_text()


def table(heading: str) -> dict[str, str]:
    """The rows of a table in docs/metrics.md: meanings by name."""
    text = METRICS.split(f"\n| {heading} | ")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))


@pytest.mark.parametrize(("heading", "glossary"), [("column", GLOSSARY), ("column of `eval.csv`", EVALUATION_GLOSSARY)])
def test_each_glossary_is_the_header_of_its_file(heading: str, glossary: dict[str, str]) -> None:
    assert table(heading) == glossary


def test_the_other_tables_are_the_keys_and_columns_that_a_run_writes(tmp_path: Path) -> None:
    config = TrainConfig(
        run_dir=str(tmp_path / "run"), workers=0, quiet=True, stop_at_iteration=1, step_times=True, num_envs=2
    )
    assert list(table("key of `summary.json`")) == list(train(config))
    header = (tmp_path / "run" / "step_times.csv").read_text().splitlines()[0]
    assert list(table("column of `step_times.csv`")) == header.split(",")
    assert list(table("column of `kl.csv`")) == list(COLUMNS)
    assert list(table("phase")) == list(PHASES)
