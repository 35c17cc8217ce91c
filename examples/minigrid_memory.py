"""MiniGrid-MemoryS9: look at an object, walk down a corridor, and turn to the matching object.

The agent may start with its back to the object, so it must learn to look first. The 7 × 7 view is one-hot encoded and
passed as a vector of normalized numbers. With integer codes instead, nothing was learned in 600,000 steps.

Three seeds reached returns of 0.97 to 0.98, the maximum of this task. The return may drop again: one of them ended
with 0.80. Needs `pip install 'shmppo[minigrid]'`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("MiniGrid-MemoryS9-v0")))
