"""The cores lmu, lru, and gtrxl in training: independent rows, and the same weights for any number of workers."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers import Saboteur, memory_run

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.runs.trainer import resume, train
from shmppo.sampling.row_independence import is_row_independent

CORES = pytest.mark.parametrize("core", ["lmu", "lru", "gtrxl"])


@CORES
@pytest.mark.parametrize("hidden", [1, 3, 16])
def test_rows_of_unusual_sizes_do_not_depend_on_other_rows(hidden: int, core: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": hidden, "encoder_sizes": (), "seq_len": 5, "attention_heads": 1}
    config = TrainConfig(env="Pendulum-v1", core=core, **sizes)  # type: ignore[arg-type]
    task = inspect_task(config)
    for rows in (1, 5, 8, 13):
        assert is_row_independent(build_model(config, task.observation, task.distribution), rows)


@CORES
def test_killed_workers_and_resuming_do_not_change_the_weights(
    core: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = memory_run(core)
    straight = train(dataclasses.replace(small, workers=0, run_dir=str(tmp_path / "straight")))
    saboteur = Saboteur(monkeypatch, at_round=6, number=signal.SIGKILL, delay=0.0)
    config = dataclasses.replace(small, workers=2, learning="sharded", stop_at_iteration=3)
    stopped = train(dataclasses.replace(config, run_dir=str(tmp_path / "run")))
    assert saboteur.hit
    assert stopped["worker_restarts"] == 1
    resumed = resume(tmp_path / "run", workers=3, learning="auto")
    assert resumed["exact"]
    assert resumed["weights_sha256"] == straight["weights_sha256"]
    other = dataclasses.replace(small, workers=0, seq_len=8, attention_window=8, run_dir=str(tmp_path / "other"))
    assert train(other)["weights_sha256"] != straight["weights_sha256"]
