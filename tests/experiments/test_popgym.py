"""The campaign on POPGym: what its table holds, and its resumption. No test needs popgym."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from figures.common.tables import read_rows
from figures.popgym import measure
from figures.popgym.cases import CORES, PUBLISHED, TASKS, VARIANTS, config_of
from shmppo.config.train_config import TrainConfig

SMALL = TrainConfig(
    env="CartPole-v1", hidden_size=8, num_envs=4, rollout_steps=128, seq_len=16, minibatches=2, epochs=1, workers=0,
    quiet=True, total_steps=4 * 128 * 100,
)  # fmt: skip


def metrics(*returns: float) -> list[dict[str, str]]:
    """Rows of metrics.csv: one iteration of half a block per return, each with 60 episodes."""
    steps = measure.BLOCK_STEPS // 2
    return [
        {"env_steps": str(steps * i), "episodes": str(60 * i), "return_mean_100": str(value)}
        for i, value in enumerate(returns, start=1)
    ]


def test_returns_are_means_of_blocks_of_the_published_batch() -> None:
    rows = metrics(9.0, 0.5, 0.75, 0.25, 1.0)  # the first iteration has fewer than 100 finished episodes
    block = measure.BLOCK_STEPS
    assert measure.block_means(rows) == {block: 0.5, 2 * block: 0.5}  # the last block is not whole


@pytest.mark.long
def test_a_case_that_is_stopped_or_killed_is_resumed_and_gives_the_same_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every return of CartPole is at least 8, so the first 100 episodes solve it."""
    monkeypatch.setattr(measure, "SOLVED", 8.0)
    monkeypatch.setattr(measure, "BLOCK_STEPS", 3 * SMALL.batch_steps)
    key = {"task": "CartPole", "core": "gru", "variant": "wide", "seed": 1, "steps": SMALL.total_steps}
    rows = []
    for name in ("straight", "stopped"):
        table, run_dir = tmp_path / name / "popgym.csv", tmp_path / name / "run"
        run_dir.mkdir(parents=True)
        (run_dir / "config.json").write_text("killed before the first checkpoint")
        config = dataclasses.replace(SMALL, run_dir=str(run_dir))
        if name == "stopped":
            with pytest.raises(SystemExit, match="was stopped; run the same command again"):
                measure.measure(key, dataclasses.replace(config, stop_at_iteration=2), table)
        measure.measure(key, config, table)
        assert not run_dir.exists()
        assert (table.parent / "curves" / str(SMALL.total_steps) / "CartPole-gru-wide-s1.csv").exists()
        rows += [{**row, "wall_seconds": ""} for row in read_rows(table)]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert rows[0]["exact"] == "True"
    iterations = int(rows[0]["env_steps"]) // SMALL.batch_steps
    assert iterations < 100
    assert iterations % 3 == 0


def test_every_case_is_a_valid_configuration() -> None:
    assert set(PUBLISHED) < set(TASKS)
    for task in TASKS:
        for core, variant in [*((core, "preset") for core in CORES), *(("gru", variant) for variant in VARIANTS)]:
            config = config_of(task, core, variant, 2, total_steps=1000)
            assert (config.env, config.seed) == (f"popgym:popgym-{task}-v0", 2)
            assert config.prev_action
