"""Pendulum with hidden angular velocity: continuous actions, and memory is needed to estimate the velocity.

Reaches a return of -250 within 100,000 steps.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("Pendulum-v1-memory")))
