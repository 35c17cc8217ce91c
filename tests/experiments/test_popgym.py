"""The campaign on POPGym: what its table holds, its resumption, and its Markdown table. No test needs popgym."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

import pytest

from figures.common.tables import read_rows, write_rows
from figures.popgym import measure, plot
from figures.popgym.cases import CORES, PUBLISHED, TASKS, VARIANTS, config_of
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError

SMALL = TrainConfig(
    hidden_size=8, num_envs=4, rollout_steps=128, seq_len=16, minibatches=2, epochs=1, workers=0, quiet=True,
    total_steps=4 * 128 * 8,
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
    found = measure.results([*metrics(*[0.0] * 14), *metrics(*[0.0] * 16, 0.5, 0.25, 0.75)[14:]], 9 * block)
    assert (found["max_return"], found["max_return_100"]) == ("0.3750", "0.7500")
    assert (found["return_500k"], found["return_1m"]) == ("0.0000", "")
    assert set(measure.results([], 0).values()) == {""}


def test_a_case_that_is_stopped_or_killed_is_resumed_and_gives_the_same_row(tmp_path: Path) -> None:
    key = {"task": "RepeatPreviousEasy", "core": "gru", "variant": "wide", "seed": 1, "steps": SMALL.total_steps}
    rows = []
    for name, deadlines in {"straight": [math.inf], "stopped": [0.0, 0.0, math.inf]}.items():
        table, run_dir = tmp_path / name / "popgym.csv", tmp_path / name / "run"
        run_dir.mkdir(parents=True)
        (run_dir / "config.json").write_text("killed before the first checkpoint")
        config = dataclasses.replace(SMALL, run_dir=str(run_dir))
        finished = [measure.measure(key, config, table, deadline) for deadline in deadlines]
        assert finished == [deadline > time.monotonic() for deadline in deadlines]
        assert not run_dir.exists()
        curves = table.parent / "curves" / str(SMALL.total_steps)
        assert (curves / "RepeatPreviousEasy-gru-wide-s1.csv").exists()
        rows += [{**row, "wall_seconds": ""} for row in read_rows(table)]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert rows[0]["exact"] == "True"


def test_a_solved_case_ends_at_the_same_step_with_and_without_interruptions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every return of CartPole is at least 8, so the first 100 episodes solve it."""
    config = dataclasses.replace(SMALL, env="CartPole-v1", total_steps=100 * SMALL.batch_steps)
    monkeypatch.setattr(measure, "SOLVED", 8.0)
    monkeypatch.setattr(measure, "BLOCK_STEPS", 3 * config.batch_steps)
    straight = measure.train_until(dataclasses.replace(config, run_dir=str(tmp_path / "straight")), math.inf)
    assert straight["iterations"] < 100
    assert straight["iterations"] % 3 == 0
    assert not straight["stopped_early"]
    config = dataclasses.replace(config, run_dir=str(tmp_path / "stopped"))
    for iteration in range(1, straight["iterations"]):
        stopped = measure.train_until(config, deadline=0.0)
        assert (stopped["iterations"], stopped["stopped_early"]) == (iteration, True)
    stopped = measure.train_until(config, deadline=0.0)
    assert (stopped["iterations"], stopped["stopped_early"]) == (straight["iterations"], False)
    assert stopped["weights_sha256"] == straight["weights_sha256"]


def test_a_run_with_other_options_is_not_resumed(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"))
    assert measure.train_until(config, deadline=0.0)["stopped_early"]
    with pytest.raises(ConfigError, match="was started with other options"):
        measure.train_until(dataclasses.replace(config, gamma=0.9), deadline=0.0)
    assert measure.train_until(config, deadline=math.inf)["iterations"] == 8


def test_every_case_is_a_valid_configuration() -> None:
    assert set(PUBLISHED) < set(TASKS)
    for task in TASKS:
        for core, variant in [*((core, "preset") for core in CORES), *(("gru", variant) for variant in VARIANTS)]:
            config = config_of(task, core, variant, 2, total_steps=1000)
            assert (config.env, config.seed) == (f"popgym:popgym-{task}-v0", 2)
            assert config.prev_action


def test_a_slow_core_is_judged_by_what_it_has_learned_when_the_fastest_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "CURVES", tmp_path)
    keys = [
        {"task": "AutoencodeEasy", "core": core, "variant": "preset", "seed": 1, "steps": "9000", "wall_seconds": time}
        for core, time in {"gru": "80.0", "lmu": "40.0"}.items()
    ]
    for key in keys:
        seconds = float(key["wall_seconds"])
        curve = [
            {
                "env_steps": (i + 1) * measure.BLOCK_STEPS,
                "wall_seconds": seconds * (i + 1) / 4,
                "return_mean_100": i / 4,
            }
            for i in range(4)
        ]
        write_rows(tmp_path / "9000" / f"{measure.name_of(key)}.csv", curve, note=None)
    assert "| AutoencodeEasy | 40 | 0.250 | 0.750 |" in plot.equal_time_table(keys, "9000")
    assert plot.equal_time_table(keys, "1000") == ""


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
    assert "| RepeatPreviousMedium | lmu | 2 | 0.990 | 0.9M of 2M | 2 | −0.315 | 0.789 (LMU) |" in runs
    assert "wide" not in runs
    monkeypatch.setattr(plot, "TABLE", table)
    monkeypatch.setattr("sys.argv", ["plot"])
    plot.main()
    written = [table.with_name(f"{name}.md").read_text() for name in ("returns-short", "variants", "returns-long")]
    assert "".join(written) == text + runs
    picture = table.with_suffix(".svg").read_text()
    assert "or at most 0.01 below, on 1 of 1 tasks" in picture
    assert "MineSweeperEasy" in picture
