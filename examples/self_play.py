"""A board game by self-play: tic-tac-toe, or Connect Four with `--preset connect_four_v3`.

Half of the opponents have the current weights, the others earlier ones. The entropy bonus is large, so that both sides
try all moves that are about as good; with 0.02, the policy loses to unusual moves.
`board_game_players.py` has opponents for evaluations. Needs the extra `pettingzoo`.
"""

import sys

from shmppo import preset
from shmppo.train import main

CONFIG = preset("tictactoe_v3", eval_every=50, eval_episodes=500)

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
