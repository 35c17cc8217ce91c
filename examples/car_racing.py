"""CarRacing from single gray images: an LSTM steers, accelerates, and brakes on a new track in each episode.

Training episodes end after 20 actions without a new piece of road: usually the car has left it, and what follows would
teach little. Evaluations during training, and the command that the run prints at its end, play whole episodes. With one
gradient shard instead of four, the policy reached a return of 824 (750 episodes) in about 25 minutes on 2 cores. Needs
`pip install 'shmppo[box2d]' pygame opencv-python-headless`.
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
    total_steps=250_000,
)


class Drive(RepeatAction):
    """Repeats each action for 4 steps. An action is the steering and a pedal, which accelerates (> 0) or brakes (< 0).

    With separate numbers for gas and brake, the policy never braked. Only the image after the 4 steps is drawn, because
    drawing takes 98 % of the time of a step.
    """

    def __init__(self, env: Any, patience: int | None) -> None:
        """Wrap CarRacing. patience: actions without a reward after which an episode ends. None: it does not end."""
        super().__init__(env, steps=4)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._patience, self._idle = patience, 0
        self._car_racing = env.unwrapped
        self._draw, self._car_racing._render = self._car_racing._render, self._render
        self._skip = 0  # images that are not drawn

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see `gymnasium.Env.reset`."""
        self._idle = self._skip = 0
        return self.env.reset(**options)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step CarRacing; see `gymnasium.Env.step`."""
        steering, pedal = action
        controls = np.array([steering, max(pedal, 0), max(-pedal, 0)], np.float32)
        self._skip = self.steps - 1
        observation, reward, terminated, truncated, info = super().step(controls)
        self._idle = 0 if reward > 0 else self._idle + 1
        return observation, reward, terminated or self._idle == self._patience, truncated, info

    def _render(self, mode: str) -> Any:
        """Draw an image, or return the one before."""
        if mode != "state_pixels" or not self._skip:
            return self._draw(mode)
        self._skip -= 1
        return self._car_racing.state.copy()  # Gymnasium warns of observations that share memory


def make(patience: int | None = None, render_mode: str | None = None) -> gymnasium.Env:
    """Make CarRacing. patience: see `Drive`."""
    return Drive(gymnasium.make("CarRacing-v3", render_mode=render_mode), patience)


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
