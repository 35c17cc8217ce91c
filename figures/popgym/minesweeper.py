"""Compute the best possible return of MineSweeperEasy, and by which actions trained policies lose return.

    python -m figures.popgym.minesweeper                                     # the best possible return
    python -m figures.popgym.minesweeper RUN_DIR… --episodes 1000            # also what each policy loses

The best player remembers every square and count, and knows all layouts of the mines that agree with them. For each step
of a policy, the script computes the loss: the expected return of the best action minus that of the policy's action,
with perfect play afterwards. The expected losses of an episode add up to the best return minus the policy's return.
`--table` appends a row per run to a table. Needs the extra `popgym`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean

from figures.common.command_line import script_parser
from figures.common.tables import append_rows
from shmppo import load_policy
from shmppo.envs.factory import make_environment
from shmppo.utils.machine import git_revision

LOSSES = ("opened twice", "unsafe", "other")
"""Kinds of loss: opening an open square; opening a square that may have a mine, although a safe one is known; the rest.
"""


class Game:
    """MineSweeper of POPGym with perfect play. A set of squares or of layouts is an integer with one bit for each.

    Attributes:
        squares: number of squares.
        safe_squares: number of squares without a mine. It is also the limit of the steps.
        success: reward of a new square without a mine.
        failure: reward of a mine, which ends the episode.
        repetition: reward of a square that is open already.
        all_layouts: the set of all layouts.
    """

    def __init__(self, rows: int, columns: int, mines: int) -> None:
        places = [divmod(square, columns) for square in range(rows * columns)]
        layouts = list(itertools.combinations(range(len(places)), mines))
        self.squares = len(places)
        self.safe_squares = self.squares - mines
        self.success = 1 / self.safe_squares
        self.failure = -0.5 - self.success
        self.repetition = -0.5 / (self.safe_squares - 2)
        self.all_layouts = (1 << len(layouts)) - 1
        self._with_mine = [0] * self.squares
        self._with_count = [[0] * (mines + 1) for _ in places]
        for i, layout in enumerate(layouts):
            for square, (row, column) in enumerate(places):
                if square in layout:
                    self._with_mine[square] |= 1 << i
                    continue
                near = sum(abs(row - places[mine][0]) <= 1 and abs(column - places[mine][1]) <= 1 for mine in layout)
                self._with_count[square][near] |= 1 << i
        self.best = cache(self._best)

    def is_safe(self, square: int, layouts: int) -> bool:
        """Whether a square has no mine in any of the layouts."""
        return not layouts & self._with_mine[square]

    def agreeing(self, layouts: int, square: int, count: int) -> int:
        """Return those of the layouts in which a square has no mine, and this many mines near it."""
        return layouts & self._with_count[square][count]

    def value(self, square: int, opened: int, layouts: int, steps: int) -> float:
        """Return the expected return of opening a square, with perfect play afterwards.

        Args:
            square: the square.
            opened: squares that are open.
            layouts: those that agree with what the player has seen. They are equally probable.
            steps: until the limit of the episode, at least 1.
        """
        if opened >> square & 1:
            return self.repetition + self.best(opened, layouts, steps - 1)
        total = (layouts & self._with_mine[square]).bit_count() * self.failure
        for count in range(len(self._with_count[square])):
            if agreeing := self.agreeing(layouts, square, count):
                after = self.best(opened | 1 << square, agreeing, steps - 1)
                total += agreeing.bit_count() * (self.success + after)
        return total / layouts.bit_count()

    def _best(self, opened: int, layouts: int, steps: int) -> float:
        """Return the expected return of perfect play.

        If every closed square has a lower expected return, the player opens open squares again until the limit.
        """
        if steps == 0 or opened.bit_count() == self.safe_squares:
            return 0.0
        closed = [square for square in range(self.squares) if not opened >> square & 1]
        # It is never better to open a safe square later: its reward is the greatest, and counts do not get lost.
        safe = next((square for square in closed if self.is_safe(square, layouts)), None)
        if safe is not None:
            return self.value(safe, opened, layouts, steps)
        waiting = steps * self.repetition if opened else float("-inf")
        return max(waiting, *(self.value(square, opened, layouts, steps) for square in closed))


def losses_of(game: Game, steps: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Return the expected return that an episode lost, by kind.

    Args:
        game: whose rules apply.
        steps: of the episode: the square, and the number of mines near it. The number is ignored for a mine, which can
            only be the last square.
    """
    lost = dict.fromkeys(LOSSES, 0.0)
    opened, layouts = 0, game.all_layouts
    for played, (square, count) in enumerate(steps):
        left = game.safe_squares - played
        loss = game.best(opened, layouts, left) - game.value(square, opened, layouts, left)
        closed_safe = any(not opened >> other & 1 and game.is_safe(other, layouts) for other in range(game.squares))
        if opened >> square & 1:
            lost["opened twice"] += loss
        elif closed_safe and not game.is_safe(square, layouts):
            lost["unsafe"] += loss
        else:
            lost["other"] += loss
        layouts, opened = game.agreeing(layouts, square, count), opened | 1 << square
    return lost


def measure(game: Game, run_dir: Path, episodes: int, seed: int) -> dict[str, str]:
    """Let a trained policy play, with sampled actions as in training. Returns its mean return and its mean losses."""
    policy = load_policy(run_dir, seed=seed, trust=("popgym",))
    config = policy.config
    if "MineSweeperEasy" not in str(config.env) or not config.prev_action:
        raise SystemExit(f"{run_dir} was not trained with MineSweeperEasy and --prev-action; name another run")
    env = make_environment(config)
    columns = env.unwrapped.dims[1]  # type: ignore[attr-defined]
    returns, lost = [], []
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        state, total, ended = policy.initial_state(), 0.0, False
        steps: list[tuple[int, int]] = []
        while not ended:
            action, state = policy.act(obs, state, deterministic=False)
            obs, reward, terminated, truncated, _ = env.step(action)
            steps.append((int(action[0]) * columns + int(action[1]), int(obs["obs"])))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
        lost.append(losses_of(game, steps))
    means = {kind: f"{fmean(episode[kind] for episode in lost):.3f}" for kind in LOSSES}
    trained = {"core": config.core, "training_seed": str(config.seed), "steps": str(config.total_steps)}
    return trained | {"episodes": str(episodes), "return": f"{fmean(returns):.3f}", **means}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN_DIR", help="runs with --env MineSweeperEasy")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="CSV file to append to")
    options = parser.parse_args()
    if options.episodes < 1:
        parser.error("--episodes must be at least 1")
    game = Game(rows=4, columns=4, mines=2)
    best = game.best(0, game.all_layouts, game.safe_squares)
    print(f"best possible return: {best:.3f}")
    for run_dir in options.runs:
        row = measure(game, run_dir, options.episodes, options.seed) | {"commit": (git_revision() or "")[:7]}
        print(row, flush=True)
        if options.table:
            append_rows(options.table, [row])


if __name__ == "__main__":
    main()
