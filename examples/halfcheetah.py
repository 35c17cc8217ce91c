"""HalfCheetah-v5 without memory, with the tuned hyperparameters of RL Baselines3 Zoo.

Actor and critic have separate networks with two layers of 256 units. Each iteration has 512 steps and 20 epochs, and
the learning rate is small and constant. The initialization of the weights is that of shmppo.

Five seeds reached returns of 3209 to 5331 (mean of the last 100 episodes) within 1,000,000 steps. Training takes about
half an hour on one core.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("HalfCheetah-v5")))
