"""HalfCheetah-v5 without memory, with hyperparameters that most MuJoCo presets share.

Actor and critic have separate networks with two layers of 64 units. Each iteration has 2048 steps and 10 epochs. The
initial standard deviation of the actions is 0.5, and the value loss is not clipped. Both are recommendations of
Andrychowicz et al. 2021 (arXiv 2006.05990).

Five seeds reached returns of 4673 to 5678 (mean of the last 100 episodes) within 1,000,000 steps. Their policies
evaluate to returns of 4606 to 6813. Training takes about 5 minutes on one core.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("HalfCheetah-v5")))
