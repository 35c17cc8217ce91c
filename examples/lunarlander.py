"""LunarLander-v3 without memory, with common hyperparameters: 16 environments × 1024 steps, minibatches of 64 steps.

A return of 278 within 1,000,000 steps (examples/trained, one seed). Training takes about 2 minutes on 2 cores.
Needs `pip install 'shmppo[box2d]'`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("LunarLander-v3")))
