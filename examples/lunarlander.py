"""LunarLander-v3 without memory, with common hyperparameters: 16 environments × 1024 steps, minibatches of 64 steps.

Reaches a return of at least 200 within 1,000,000 steps, in about 4 minutes on 2 cores. Needs
`pip install 'shmppo[box2d]'`.
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="LunarLander-v3",
    core="none",
    encoder_sizes=(64, 64),
    separate_critic=True,
    num_envs=16,
    rollout_steps=1024,
    minibatches=256,
    epochs=4,
    learning_rate=3e-4,
    gamma=0.999,
    gae_lambda=0.98,
    entropy_coef=0.01,
    total_steps=1_000_000,
)

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
