"""metrics.csv: its columns."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from shmppo.config.train_config import TrainConfig
from shmppo.loggers.metrics import GLOSSARY
from shmppo.runs.trainer import train
from shmppo.utils.phase_timer import PHASES

STANDARD = {
    "approx_kl", "approx_kl_last_epoch", "failed_episodes", "optimizer_steps", "optimizer_seconds", "sync_seconds",
    "allreduce_seconds",
}  # fmt: skip
FORMER = {
    "kl", "kl_last_epoch", "bad_episodes", "optimiser_steps", "optimiser_seconds", "handshake_seconds",
    "exchange_seconds",
}  # fmt: skip
"""Names of these columns in earlier versions."""


def test_the_header_is_the_glossary_with_its_standard_names(tmp_path: Path) -> None:
    config = TrainConfig(num_envs=2, rollout_steps=8, minibatches=1, workers=0, total_steps=16, quiet=True)
    summary = train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        header, row = csv.reader(file)
    assert header == list(GLOSSARY)
    assert set(header) >= STANDARD | {f"{phase}_seconds" for phase in PHASES}
    assert not FORMER & {*header, *summary, *summary["phase_seconds"]}
    assert [name for name, value in zip(header, row, strict=True) if not value] == [], "a value for each column"
    assert "optimizer" in PHASES
    assert {"phase_seconds", "weights_sha256", "exact"} <= set(summary)
    assert row[header.index("weights_hash")] == summary["weights_sha256"][:16]
