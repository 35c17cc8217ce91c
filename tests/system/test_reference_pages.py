"""The pages in docs/reference agree with the code: what a run writes and what a checkpoint contains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import TESTS
from public_helpers import csv_rows, python, run_fixture, summary_of

from shmppo import TrainConfig
from shmppo.extensions.kl_profile.files import GLOSSARY as KL_GLOSSARY
from shmppo.loggers import metrics
from shmppo.storage.checkpoint_file import load_checkpoint

ROOT = TESTS.parent
REFERENCE = ROOT / "docs" / "reference"


run_dir = run_fixture(
    TrainConfig(
        workers=0, num_envs=2, stop_at_iteration=2, quiet=True, checkpoint_every=1, keep_every=1, kl_profile_every=1,
        eval_every=1, eval_episodes=1,
    )
)  # fmt: skip
"""A run that writes every kind of file that needs no failure and no tracker."""


def names_in_table(page: str, heading: str) -> list[str]:
    """The names in the first column of a table."""
    text = (REFERENCE / page).read_text().split(f"\n| {heading} | ")[1].split("\n\n")[0]
    return [name for line in text.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


def json_keys(path: Path) -> list[str]:
    """The keys of a JSON file, in order."""
    return list(json.loads(path.read_text()))


def test_generated_parts_are_up_to_date() -> None:
    result = python(ROOT / "docs" / "generate.py", "--check")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("file", "glossary"),
    [("metrics.csv", metrics.GLOSSARY), ("eval.csv", metrics.EVALUATION_GLOSSARY), ("kl.csv", KL_GLOSSARY)],
)
def test_each_glossary_is_the_header_of_its_file(run_dir: Path, file: str, glossary: dict[str, str]) -> None:
    rows = csv_rows(run_dir / file)
    assert [list(row) for row in rows] == [list(glossary)] * len(rows)
    assert [name for row in rows for name, value in row.items() if not value] == []
    assert file != "metrics.csv" or rows[-1]["weights_hash"] == summary_of(run_dir)["weights_sha256"][:16]


def test_the_page_of_metrics_has_the_keys_of_the_summary(run_dir: Path) -> None:
    text = (REFERENCE / "metrics.md").read_text().split("\n## summary.json\n")[1].split("\n## ")[0]
    assert json_keys(run_dir / "summary.json") == re.findall(r"^`(\w+)`$", text, re.MULTILINE)


def test_every_file_of_a_run_is_described(run_dir: Path) -> None:
    described = {name.rstrip("/") for name in names_in_table("run-directory.md", "file")}
    written = {re.sub(r"iteration-\d+", "iteration-000100", path.name) for path in run_dir.iterdir()}
    assert written <= described
    assert {"checkpoint-1.pt", "checkpoint-iteration-000100.pt", "kl", "eval.csv"} <= written


def test_the_keys_of_the_files_are_described(run_dir: Path) -> None:
    checkpoint = load_checkpoint(run_dir / "checkpoint.pt")
    assert set(names_in_table("run-directory.md", "key of `config.json`")) == set(json_keys(run_dir / "config.json"))
    assert set(names_in_table("run-directory.md", "key of a checkpoint")) == checkpoint.keys()
    assert set(names_in_table("run-directory.md", "key of `learner`")) == checkpoint["learner"].keys()
    page = (REFERENCE / "run-directory.md").read_text()
    with np.load(run_dir / "kl" / "000001.npz") as profile:
        assert all(f"`{name}`" in page for name in profile)
