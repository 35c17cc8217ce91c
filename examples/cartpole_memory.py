"""CartPole with hidden velocities. A policy without memory cannot solve this task.

Reaches a return of 475 within 200,000 steps. With `--core none`, it fails.
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(env="CartPole-v1", hide_obs=(1, 3), total_steps=200_000)

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
