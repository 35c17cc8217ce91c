"""Plot the learning curves of teams and games: python -m figures.agents.plot"""

from __future__ import annotations

from figures.agents.measure import FOLDER, GAMES, TABLE, TEAMS
from figures.common.command_line import picture_path
from figures.common.curves import NOTE, draw_curve, draw_evaluations
from figures.common.provenance import caption
from figures.common.tables import distinct, rows_with
from shmppo.plotting.style import COLORS, group_thousands, label, new_figure, save


def main() -> None:
    out = picture_path(FOLDER / "agents.svg", __doc__)
    figure, (spread, message, elo) = new_figure(
        1, 3, height=3.4, headline="Three agents that cooperate, two that need memory, and games by self-play"
    )
    for (task, case), color in zip(TEAMS, (*COLORS[:3], *COLORS[:2]), strict=True):
        axis = spread if task == "simple_spread" else message
        draw_curve(axis, FOLDER / "curves", f"{task}-{case}", "return_mean_100", case.replace(", ", ",\n"), color)
        draw_evaluations(axis, rows_with(TABLE, {"task": task, "case": case}), color)
    for game, color in zip(GAMES, COLORS, strict=False):
        draw_curve(elo, FOLDER / "curves", game, "elo", game, color)
    label(spread, "environment steps", "return of the team", "simple_spread")
    label(message, "environment steps", "return of the team", "A message to remember")
    label(elo, "environment steps", "Elo", "Self-play, initial weights: 0")
    for axis in (spread, message, elo):
        group_thousands(axis)
        axis.legend(loc="center right" if axis is message else "lower right")
    save(figure, out, caption(TABLE, f"{NOTE} Elo: seed 1.", seeds=distinct(rows_with(TABLE, {}), "seed")))


if __name__ == "__main__":
    main()
