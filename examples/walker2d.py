"""Walker2d-v5 without memory, with the hyperparameters of `halfcheetah.py`.

Reaches a return of at least 2600 within 1,000,000 steps (median over seeds). Training takes about 6 minutes on 2 cores.
"""

import dataclasses
import sys

from halfcheetah import CONFIG as MUJOCO

from shmppo.train import main

CONFIG = dataclasses.replace(MUJOCO, env="Walker2d-v5")

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
