"""A board game by self-play: tic-tac-toe, or another game of PettingZoo with `--env`.

Half of the opponents have the current weights, the others earlier ones. `board_game_players.py` has opponents for
evaluations. Needs the extra `pettingzoo`.
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="pettingzoo.classic.tictactoe_v3:env", action_masks=True, self_play=(), opponent_every=5, core="none",
    encoder_sizes=(256, 256), activation="relu", num_envs=64, rollout_steps=64, minibatches=8, epochs=4,
    learning_rate=1e-3, entropy_coef=0.02, anneal_entropy=True, gamma=1.0, normalize_obs=False, normalize_reward=False,
    total_steps=3_000_000, eval_every=50, eval_episodes=500,
)  # fmt: skip

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
