"""Players of board games to evaluate against: a perfect one for tic-tac-toe, and a search for Connect Four.

    cd examples
    python -m shmppo.evaluate ../runs/tictactoe --trust pettingzoo --opponent board_game_players:perfect
    python -m shmppo.evaluate ../runs/connect-four --trust pettingzoo --opponent board_game_players:searching

A board is an integer array: 1 for the fields of the player who has the turn, -1 for those of the other one, else 0.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

DEPTH = 4  # moves that `searching` looks ahead
Board = tuple[tuple[int, ...], ...]


@functools.cache
def lines(height: int, width: int) -> list[tuple[tuple[int, int], ...]]:
    """Return the fields of each line that wins: three in a row on a board of 3 × 3, otherwise four."""
    length, found = (3 if height == 3 else 4), []
    for row, column in itertools.product(range(height), range(width)):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            line = tuple((row + k * down, column + k * right) for k in range(length))
            if line[-1][0] < height and 0 <= line[-1][1] < width:
                found.append(line)
    return found


def has_lost(board: Board) -> bool:
    """Whether the other player has completed a line."""
    return any(all(board[i][j] == -1 for i, j in line) for line in lines(len(board), len(board[0])))


def moves(board: Board) -> list[tuple[int, Board]]:
    """Return each move, and the board after it as the other player sees it. In Connect Four, a move is a column."""
    height, width, found = len(board), len(board[0]), []
    for i, j in itertools.product(range(height), range(width)):
        if board[i][j] or (height > 3 and i + 1 < height and not board[i + 1][j]):
            continue
        after = [[-value for value in row] for row in board]
        after[i][j] = -1
        found.append((i * width + j if height == 3 else j, tuple(map(tuple, after))))
    return found


@functools.lru_cache(1 << 20)
def value(board: Board, depth: int) -> int:
    """Return the result for the player who has the turn: 1, 0, or -1. 0 also for what lies beyond the search depth."""
    if has_lost(board):
        return -1
    if not depth:
        return 0
    best = None
    for _, after in moves(board):
        best = max(-1 if best is None else best, -value(after, depth - 1))
        if best == 1:
            break
    return best or 0


def play(observation: Any, generator: np.random.Generator, depth: int) -> int:
    """Return one of the best moves for an observation of PettingZoo."""
    own, other = np.moveaxis(observation["obs"], -1, 0).astype(int)
    scores = [(move, -value(after, depth - 1)) for move, after in moves(tuple(map(tuple, (own - other).tolist())))]
    best = max(score for _, score in scores)
    return int(generator.choice([move for move, score in scores if score == best]))


def perfect(observation: Any, space: Any, generator: np.random.Generator) -> int:
    """Play tic-tac-toe without mistakes."""
    return play(observation, generator, 9)


def searching(observation: Any, space: Any, generator: np.random.Generator) -> int:
    """Play Connect Four by looking DEPTH moves ahead."""
    return play(observation, generator, DEPTH)
