"""Three agents learn with one policy to cover three landmarks: simple_spread of MPE2 (extra `pettingzoo`).

The critic also sees the state of the whole environment (MAPPO). Compare with `--no-critic-state` (IPPO).
"""

import sys

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="mpe2.simple_spread_v3:parallel_env", separate_critic="all", critic_state=True, num_envs=32, rollout_steps=50,
    encoder_sizes=(64,), hidden_size=64, epochs=8, minibatches=4, seq_len=25, learning_rate=7e-4, entropy_coef=0.01,
    total_steps=1_000_000,
)  # fmt: skip

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
