"""MountainCarContinuous with hidden velocity.

The car reaches the goal only if it swings back and forth at the right times. Each action is repeated for 8 steps,
because independent noise in every step does not reach the goal. Reaches a return of 88 within 300,000 steps, which are
37,500 actions.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("MountainCarContinuous-v0-memory")))
