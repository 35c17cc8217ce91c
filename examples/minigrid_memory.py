"""MiniGrid-MemoryS9: look at an object, walk down a corridor, and turn to where the same object lies.

The agent may start with its back to the object: it has to learn to look first. The 7 × 7 symbolic view goes in one-
hot, as a vector of normalized numbers; as plain codes nothing was learned in 600,000 steps. Three seeds ended with a
return of 0.98, which is the most there is; on the way there an update may lose it for a while. Needs `pip install
'shmppo[minigrid]'`.
"""

import sys

import gymnasium
from gymnasium import spaces

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="minigrid:MiniGrid-MemoryS9-v0",
    wrappers=(
        "minigrid.wrappers:OneHotPartialObsWrapper",
        "minigrid.wrappers:ImgObsWrapper",
        "FlattenObservation",
        "minigrid_memory:Moves",
    ),
    hidden_size=128,
    encoder_sizes=(128,),
    gamma=0.995,
    learning_rate=5e-4,
    entropy_coef=0.01,
    total_steps=1_000_000,
)


class Moves(gymnasium.ActionWrapper):
    """Leaves only the actions that do something here: turn left, turn right, forward."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(3)

    def action(self, action: int) -> int:
        return action


if __name__ == "__main__":  # workers import this file too
    sys.exit(main(CONFIG))
