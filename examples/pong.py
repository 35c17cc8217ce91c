"""Pong from single frames: the usual Atari preprocessing, a small encoder, and an LSTM to track the ball's motion.

The hyperparameters follow CleanRL's ppo_atari_lstm, with another encoder, a greater learning rate, twice as many
minibatches, and sequences of 32 steps. One million steps take 26 minutes on one core. The learning rate decreases as if
the run had 10,000,000 steps, so you can resume it with more:
`python examples/pong.py --resume RUN_DIR --trust ale_py --total-steps 10000000`.
Needs `pip install 'shmppo[atari]'`.

To use four stacked frames instead of memory, add the flags
`--core none --wrappers "AtariPreprocessing()" "FrameStackObservation(stack_size=4)"`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("ALE/Pong-v5")))
