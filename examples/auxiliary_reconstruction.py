"""CartPole with hidden velocities and an auxiliary loss: the features of the LSTM also reconstruct the observation.

Reaches a return of 475 within 200,000 steps, in about 30 seconds on 2 cores.
"""

import sys
from collections.abc import Mapping

from torch import Tensor, nn

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(
    env="CartPole-v1", hide_obs=(1, 3), auxiliary="auxiliary_reconstruction:Reconstruction", total_steps=200_000
)


class Reconstruction(nn.Module):
    """Predicts the normalized observation with a linear layer. Its loss is the mean squared error of each step."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: TrainConfig, features: int, actions: int) -> None:
        """Create the layer.

        Args:
            shapes: shape of each leaf of the observation.
            config: the configuration of the run.
            features: F, units of the LSTM.
            actions: A, size of an action.
        """
        super().__init__()
        (size,) = shapes["obs"]
        self.predict = nn.Linear(features, size)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        """Return the loss of each of R steps, [R].

        Args:
            features: [R, F], what the policy head reads.
            obs: obs["obs"] is the observation, [R, D].
            actions: [R, A].
            returns: [R], the targets of the value loss.
        """
        return (self.predict(features) - obs["obs"]).square().mean(1)


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
