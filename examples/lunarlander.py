"""LunarLander-v3 without memory, with common hyperparameters: 16 environments × 1024 steps, minibatches of 64 steps.

Three seeds reached returns of 265 to 278 (mean of the last 100 episodes) within 1,000,000 steps. Training takes about
2 minutes on 2 cores. Needs `pip install 'shmppo[box2d]'`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("LunarLander-v3")))
