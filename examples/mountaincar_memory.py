"""MountainCarContinuous with hidden velocity.

The car reaches the goal only if it swings back and forth at the right times. Each action is repeated for 8 steps,
because independent noise in every step does not reach the goal. Reaches a return of 88 within 300,000 steps, which are
37,500 actions.
"""

import sys
from typing import Any

import gymnasium

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="MountainCarContinuous-v0",
    wrappers=("mountaincar_memory:Hold(steps=8)",),
    hide_obs=(1,),
    num_envs=8,
    seq_len=16,
    total_steps=300_000 // 8,
)


class Hold(gymnasium.Wrapper):
    """Repeats each action and returns the sum of its rewards.

    Args:
        env: the environment.
        steps: steps per action.
    """

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        super().__init__(env)
        self.steps = steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.steps):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
