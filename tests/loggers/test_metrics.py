"""metrics.csv: its columns."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import GLOSSARY
from shmppo.runs.launch import train


def test_the_header_is_the_glossary_and_a_row_has_a_value_for_each_column(tmp_path: Path) -> None:
    config = TrainConfig(num_envs=2, rollout_steps=8, minibatches=1, workers=0, total_steps=16, quiet=True)
    summary = train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        header, row = csv.reader(file)
    assert header == list(GLOSSARY)
    assert [name for name, value in zip(header, row, strict=True) if not value] == []
    assert row[header.index("weights_hash")] == summary["weights_sha256"][:16]
