"""HalfCheetah-v5 without velocities, taught by a policy that sees them (kickstarting).

The teacher is the policy of `trained/halfcheetah`. The student sees the positions and needs memory; its critic and the
teacher see the whole observation. Compare with `--teacher None`, or only imitate with `--objective distill
--teacher-steps None`.
"""

import sys
from pathlib import Path

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="HalfCheetah-v5", wrappers=("shmppo.envs.wrappers:SplitObservation(everything=[None], positions=[8])",),
    separate_critic="all", actor_obs=("positions",), critic_obs=("everything",),
    teacher=str(Path(__file__).parent / "trained" / "halfcheetah"), teacher_steps=500_000,
    num_envs=16, rollout_steps=128, encoder_sizes=(128,), hidden_size=128, epochs=4, minibatches=4, seq_len=16,
    learning_rate=3e-4, total_steps=1_000_000,
)  # fmt: skip

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
