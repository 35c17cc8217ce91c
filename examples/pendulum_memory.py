"""Pendulum with hidden angular velocity: continuous actions, and memory is needed to estimate the velocity.

Reaches a return of -250 within 200,000 steps. γ = 0.99 does not work here.
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="Pendulum-v1",
    hide_obs=(2,),
    num_envs=4,
    rollout_steps=512,
    epochs=10,
    gamma=0.9,
    gae_lambda=0.9,
    total_steps=200_000,
)

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
