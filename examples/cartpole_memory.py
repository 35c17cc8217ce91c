"""CartPole with hidden velocities. A policy without memory cannot solve this task.

Reaches a return of 475 within 200,000 steps. With `--core none`, it fails.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("CartPole-v1-memory")))
