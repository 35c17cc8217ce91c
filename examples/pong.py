"""Pong from single frames: the usual Atari preprocessing, the Nature network, and an LSTM to track the ball's motion.

The hyperparameters are those of CleanRL's ppo_atari_lstm, which reaches a return of 19 within 10,000,000 steps.
Training takes some hours on 2 cores. Needs `pip install 'shmppo[atari]'`.

To use four stacked frames instead of memory, add the flags
`--core none --wrappers "AtariPreprocessing()" "FrameStackObservation(stack_size=4)"`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("ALE/Pong-v5")))
