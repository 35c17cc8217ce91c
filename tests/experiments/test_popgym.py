"""The campaign on POPGym: what its table holds, its resumption, and the best players. No test needs popgym."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from figures.common.tables import read_rows
from figures.popgym import measure
from figures.popgym.cases import CORES, PUBLISHED, TASKS, VARIANTS, config_of
from figures.popgym.higher_lower import deals, return_without_memory, returns_of_counting
from figures.popgym.minesweeper import Game, losses_of
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


def test_three_cards_have_the_returns_of_a_computation_by_hand() -> None:
    """The player who counts always knows the final card. After the middle card, any guess is even."""
    decks = np.array(list(itertools.permutations(range(3))))
    assert returns_of_counting(decks).mean() == pytest.approx((2 + 1 + 2) / 3 / 3)
    assert return_without_memory(ranks=3, copies=1) == pytest.approx(2 / 3 * 2 / 3)


def test_counting_does_not_help_with_two_ranks() -> None:
    decks = np.array(sorted(set(itertools.permutations((0, 0, 1, 1)))))
    assert returns_of_counting(decks).mean() == pytest.approx(0.5)
    assert return_without_memory(ranks=2, copies=2) == pytest.approx(0.5)


def test_decks_have_all_cards() -> None:
    decks = deals(5, ranks=4, copies=3)
    assert np.array_equal(np.sort(decks, axis=1), np.tile(np.repeat(np.arange(4), 3), (5, 1)))
    assert not np.array_equal(decks[0], decks[1])


def test_the_value_of_perfect_play_is_that_of_a_computation_by_hand() -> None:
    """2 × 2 squares with 1 mine: every count is 1, so no square is ever known to be safe."""
    game = Game(rows=2, columns=2, mines=1)
    last = 0.5 * -5 / 6 + 0.5 / 3  # two closed squares; opening an open square costs 0.5
    second = 1 / 3 * -5 / 6 + 2 / 3 * (1 / 3 + last)
    first = 1 / 4 * -5 / 6 + 3 / 4 * (1 / 3 + second)
    assert game.best(0, game.all_layouts, 3) == pytest.approx(first) == pytest.approx(-0.125)


def test_safe_squares_are_opened_first() -> None:
    """1 × 5 squares with 1 mine: a count of 0 on the first square says that the second is safe."""
    game = Game(rows=1, columns=5, mines=1)
    opened, layouts = 0b1, game.agreeing(game.all_layouts, 0, 0)
    assert game.is_safe(1, layouts)
    assert not game.is_safe(2, layouts)
    assert game.best(opened, layouts, 3) == game.value(1, opened, layouts, 3)
    # It reveals whether the third square has the mine. If not, that one is safe, too, and reveals the rest.
    assert game.best(opened, layouts, 3) == pytest.approx(3 / 4)


def test_losses_are_differences_of_expected_returns() -> None:
    game = Game(rows=1, columns=5, mines=1)
    before = game.best(0, game.all_layouts, 4)
    layouts = game.agreeing(game.all_layouts, 0, 0)
    twice = losses_of(game, [(0, 0), (0, 0)])
    # Opening a square twice costs 0.25 and one of the three remaining steps, in which a safe square gave 0.25.
    assert twice["opened twice"] == pytest.approx(0.25 + 0.25)
    assert twice["unsafe"] == 0
    unsafe = losses_of(game, [(0, 0), (4, 0)])
    expected = 3 / 4 - game.value(4, 0b1, layouts, 3)
    assert unsafe["unsafe"] == pytest.approx(expected)
    assert expected > 0
    assert twice["other"] == unsafe["other"] == pytest.approx(before - game.value(0, 0, game.all_layouts, 4))


def play(game: Game, mine: int, squares: list[int]) -> tuple[float, list[tuple[int, int]]]:
    """Open squares in a row of five with one mine. Returns the return, and the squares with their counts."""
    total, steps = 0.0, []
    for played, square in enumerate(squares[: game.safe_squares]):
        repeated = square in squares[:played]
        total += game.failure if square == mine else game.repetition if repeated else game.success
        steps.append((square, int(abs(square - mine) <= 1)))
        if square == mine:
            break
    return total, steps


@pytest.mark.parametrize("squares", [[0, 1, 2, 3], [2, 2, 0, 4], [4, 2, 1, 1], [0, 3, 0, 1]])
def test_losses_add_up_to_the_best_return_minus_the_mean_return(squares: list[int]) -> None:
    game = Game(rows=1, columns=5, mines=1)
    played = [play(game, mine, squares) for mine in range(5)]
    mean_return = sum(total for total, _ in played) / 5
    mean_loss = sum(sum(losses_of(game, steps).values()) for _, steps in played) / 5
    assert mean_loss == pytest.approx(game.best(0, game.all_layouts, 4) - mean_return)


def test_perfect_play_of_the_easy_task() -> None:
    """The number was computed once with this code; docs/guides/popgym.md quotes it."""
    game = Game(rows=4, columns=4, mines=2)
    assert game.best(0, game.all_layouts, game.safe_squares) == pytest.approx(0.76607, abs=1e-5)
