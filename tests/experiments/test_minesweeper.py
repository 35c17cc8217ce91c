"""Perfect play of MineSweeper and the losses of other players, against hand-computed numbers."""

from __future__ import annotations

import pytest

from figures.popgym.minesweeper import Game, losses_of


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
