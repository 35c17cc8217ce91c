"""CarRacing from single gray images: an LSTM steers, accelerates, and brakes on a new track in each episode.

Evaluations during training (eval.csv) show the return of whole episodes. Those of training end once the car has left
the road. Needs `pip install 'shmppo[box2d]'`.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shmppo import TrainConfig
from shmppo.envs.wrappers import RepeatAction
from shmppo.train import main

CONFIG = TrainConfig(
    env="car_racing:make",
    wrappers=("ResizeObservation(shape=(64, 64))", "GrayscaleObservation()"),
    env_kwargs={"patience": 20},
    eval_env_kwargs={"patience": None},
    eval_every=20,
    encoder="nature",
    hidden_size=128,
    log_std_init=-2.0,
    epochs=6,
    learning_rate=3e-4,
    target_kl=0.04,
    total_steps=400_000,
)


class Drive(RepeatAction):
    """Repeats each action of two numbers: the steering, and a pedal that accelerates (> 0) or brakes (< 0).

    With a number each for gas and brake, policies learned first that braking costs time, and then never braked again.
    """

    def __init__(self, env: Any, steps: int, patience: int | None) -> None:
        """Wrap CarRacing.

        Args:
            env: the environment.
            steps: per action, a divisor of the 1,000 steps of an episode. Only the last one is drawn, because drawing
                takes 98 % of the time of a step.
            patience: an episode ends after so many actions without a reward, when the car has left the road. Most of
                what follows would teach nothing. None: it does not end.
        """
        super().__init__(env, steps)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._patience, self._idle = patience, 0
        self._car_racing = env.unwrapped
        self._draw = self._car_racing._render

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see `gymnasium.Env.reset`."""
        self._idle = 0
        return self.env.reset(**options)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step CarRacing; see `gymnasium.Env.step`."""
        steering, pedal = action
        controls = np.array([steering, max(pedal, 0), max(-pedal, 0)], np.float32)
        total = 0.0
        for left in reversed(range(self.steps)):
            self._car_racing._render = self._last_image if left else self._draw
            observation, reward, terminated, truncated, info = self.env.step(controls)
            total += float(reward)
            if terminated or truncated:
                break
        self._car_racing._render = self._draw
        self._idle = 0 if total > 0 else self._idle + 1
        return observation, total, terminated or self._idle == self._patience, truncated, info

    def _last_image(self, mode: str) -> Any:
        return self._car_racing.state


def make(patience: int | None, render_mode: str | None = None) -> gymnasium.Env:
    """Make CarRacing with actions of four steps. patience: see `Drive`."""
    return Drive(gymnasium.make("CarRacing-v3", render_mode=render_mode), 4, patience)


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
