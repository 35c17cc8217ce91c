"""LunarLander-v3 without memory, with common hyperparameters: 16 environments × 1024 steps, minibatches of 64 steps.

Expected: a return of at least 200 within 1,000,000 steps. It has not been measured. Training takes about 4 minutes on
2 cores. Needs `pip install 'shmppo[box2d]'`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("LunarLander-v3")))
