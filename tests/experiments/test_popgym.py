"""The campaign on POPGym: what its table holds, its resumption, and its Markdown table. No test needs popgym."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from figures.common.tables import read_rows, write_rows
from figures.popgym import measure, plot
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


def test_the_markdown_table_and_the_picture_show_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {
            "task": task, "core": core, "variant": "preset", "seed": seed, "steps": 1_000_000, "env_steps": 900_000,
            "wall_seconds": 150, "max_return": value,
        }
        for task, core, seed, value in [
            ("RepeatPreviousMedium", "gru", 1, "-0.4"),
            ("RepeatPreviousMedium", "lmu", 1, "0.6"),
            ("RepeatPreviousMedium", "lmu", 2, "0.99"),
            ("MineSweeperEasy", "gru", 1, "0.1"),
        ]
    ]  # fmt: skip
    wide = rows[0] | {"variant": "wide", "max_return": "-0.2"}
    table = tmp_path / "popgym.csv"
    write_rows(table, [*rows, wide])
    text = plot.returns_table(read_rows(table), "1000000") + plot.variants_table(read_rows(table))
    assert "| RepeatPreviousMedium | gru | 1,000,000 | wide | −0.200 | −0.400 |" in text
    assert plot.variants_table(rows) == ""
    assert "| RepeatPreviousMedium | −0.400 | 0.600, 0.990 | −0.315 | 0.789 (LMU) |" in text
    assert "MineSweeperEasy" not in text  # only one core
    longer = [row | {"steps": 2_000_000} for row in rows]
    write_rows(table, [*rows, wide, *longer])
    runs = plot.runs_table(read_rows(table))
    assert "| RepeatPreviousMedium | −0.400 (0.9M) | 0.600 (0.9M), 0.990 (0.9M) | −0.315 | 0.789 (LMU) |" in runs
    assert "wide" not in runs
    monkeypatch.setattr(plot, "TABLE", table)
    monkeypatch.setattr("sys.argv", ["plot"])
    plot.main()
    written = [table.with_name(f"{name}.md").read_text() for name in ("returns-short", "variants", "returns-long")]
    assert "".join(written) == text + runs
    picture = table.with_suffix(".svg").read_text()
    assert "or at most 0.01 below, on 1 of 1 tasks" in picture
    assert "MineSweeperEasy" in picture
