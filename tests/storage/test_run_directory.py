"""The directory of a run, and its tables."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path

import pytest
from public_helpers import SIX_ITERATIONS, csv_rows, summary_of, train_in

from shmppo import train
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.storage.run_directory import MetricsFile, create_run_directory


def test_a_link_to_nothing_in_place_of_the_default_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "none")
    message = rf"^{tmp_path}/runs/.* cannot be written: File exists; make space there, or name another directory$"
    with ExitStack() as stack, pytest.raises(ConfigError, match=message):
        create_run_directory(TrainConfig(), stack, tmp_path)


def test_a_run_can_be_replaced(tmp_path: Path) -> None:
    path, config = tmp_path / "run", dataclasses.replace(SIX_ITERATIONS, run_dir=str(tmp_path / "run"))
    train_in(path, config, eval_every=1, eval_episodes=1, kl_profile_every=1)
    (path / "notes.txt").write_text("mine")
    for name in ("rank-1", "rank-2", "rank-1.bak"):
        (path / name).mkdir()
    with pytest.raises(ConfigError, match="Nothing-v0"):
        train(dataclasses.replace(config, env="Nothing-v0"), overwrite=True)
    assert summary_of(path)["iterations"] == 6, "what cannot start replaces nothing"
    train(dataclasses.replace(config, seed=2, stop_at_iteration=2), overwrite=True)
    assert len(csv_rows(path / "metrics.csv")) == 2
    written = {"config.json", "metrics.csv", "episodes.csv", "summary.json", "run.log", "run.lock"}
    found = {file.name for file in path.iterdir() if not file.name.startswith("checkpoint")}
    assert found == written | {"notes.txt", "rank-1.bak"}
    with pytest.raises(ConfigError, match="is read by the new run; name another one"):
        train(dataclasses.replace(config, init_from=str(path)), overwrite=True)
    assert "resumed" not in (path / "run.log").read_text()
    assert (
        summary_of(path)["weights_sha256"]
        == train_in(tmp_path / "new", config, seed=2, stop_at_iteration=2)["weights_sha256"]
    )


def test_only_a_run_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    mine = [tmp_path / "videos" / "mine.mp4", tmp_path / "checkpoints.pt"]
    for file in mine:
        file.write_text("mine")
    config = dataclasses.replace(SIX_ITERATIONS, run_dir=str(tmp_path), stop_at_iteration=1)
    train(config, overwrite=True)
    assert all(file.exists() for file in mine), "there was no run"


def test_rows_are_added_to_a_table_with_a_damaged_byte(tmp_path: Path) -> None:
    path, before = tmp_path / "metrics.csv", b"iteration,entropy\r\n1,0.\xff\r\n"
    path.write_bytes(before)
    MetricsFile(path, ()).write({"iteration": 2, "entropy": 0.5})
    assert path.read_bytes() == before + b"2,0.5\r\n"


def test_counters_keep_all_digits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"env_steps,entropy\r\n")
    MetricsFile(path, ()).write({"env_steps": 12_345_678_912, "entropy": 1 / 3})
    assert path.read_bytes().splitlines()[1] == b"12345678912,0.3333333333"
