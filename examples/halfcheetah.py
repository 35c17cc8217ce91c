"""HalfCheetah-v5 without memory, with common hyperparameters for MuJoCo tasks.

Actor and critic have separate networks with two layers of 64 units. Each iteration has 2048 steps and 10 epochs.
Reaches a return of at least 1350 within 1,000,000 steps. Some seeds find a gait with three times that return.
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="HalfCheetah-v5",
    core="none",
    encoder_sizes=(64, 64),
    separate_critic=True,
    num_envs=1,
    rollout_steps=2048,
    minibatches=32,
    epochs=10,
    learning_rate=3e-4,
    value_clip=True,
    total_steps=1_000_000,
)

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
