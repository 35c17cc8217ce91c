"""Pong from single frames: the usual Atari preprocessing, the Nature network, and an LSTM to track the ball's motion.

The hyperparameters are those of CleanRL's ppo_atari_lstm, which reaches a return of 19 within 10,000,000 steps.
Training takes some hours on 2 cores. Needs `pip install 'shmppo[atari]'`.

To use four stacked frames instead of memory, add the flags
`--core none --wrappers "AtariPreprocessing()" "FrameStackObservation(stack_size=4)"`.
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="ale_py:ALE/Pong-v5",
    env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
    wrappers=("AtariPreprocessing()",),
    hidden_size=128,
    num_envs=8,
    rollout_steps=128,
    minibatches=4,
    epochs=4,
    learning_rate=2.5e-4,
    clip=0.1,
    value_clip=True,
    entropy_coef=0.01,
    clip_reward=1.0,
    normalize_reward=False,
    total_steps=10_000_000,
)

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
