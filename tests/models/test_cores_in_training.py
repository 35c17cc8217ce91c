"""The cores lmu, lru, and gtrxl in training: independent rows, and the same weights for any number of workers."""

from __future__ import annotations

from typing import Any

import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.models.actor_critic import build_model
from shmppo.sampling.row_independence import is_row_independent

CORES = pytest.mark.parametrize("core", ["lmu", "lru", "gtrxl"])


@CORES
@pytest.mark.parametrize("hidden", [4, 12, 16])
def test_rows_of_unusual_sizes_do_not_depend_on_other_rows(hidden: int, core: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": hidden, "encoder_sizes": (), "seq_len": 5}
    config = TrainConfig(env="Pendulum-v1", core=core, **sizes)  # type: ignore[arg-type]
    task = inspect_task(config)
    for rows in (1, 5, 8, 13):
        assert is_row_independent(build_model(config, task.observation, task.distribution), rows)
