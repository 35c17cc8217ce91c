"""A custom recurrent network for CartPole with hidden velocities: running averages of the features instead of an LSTM.

The difference between a feature and its average shows the direction of motion. Reaches a return of 475 within 200,000
steps, in about 20 seconds on 2 cores.
"""

import sys
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shmppo import TrainConfig
from shmppo.train import main

CONFIG = TrainConfig(env="CartPole-v1", hide_obs=(1, 3), network="custom_network:averages", total_steps=200_000)


class Averages(nn.Module):
    """Computes features and their running averages. The rate of each average is a learned parameter."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.features, self.state_size = 2 * units, units
        self.encode, self.mix = nn.Linear(inputs, units), nn.Linear(2 * units, 2 * units)
        self.rate = nn.Parameter(torch.linspace(-2.0, 2.0, units))

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Process a minibatch of R sequences with L steps.

        Args:
            obs: obs["obs"] is the observation, [L, R, D].
            first: [L, R], whether an episode starts at a step.
            state: [R, units], the averages before the first step.

        Returns:
            The features [L, R, 2 · units] and the averages after the last step [R, units].
        """
        seen, rate = torch.tanh(self.encode(obs["obs"])), torch.sigmoid(self.rate)
        averages = []
        # `first` is not needed: an episode starts only at the start of a sequence, and its state is zero there.
        for step in seen:
            state = state + rate * (step - state)
            averages.append(state)
        return torch.tanh(self.mix(torch.cat([seen, torch.stack(averages)], -1))), state


def averages(shapes: Mapping[str, tuple[int, ...]], config: TrainConfig) -> nn.Module:
    """Make the network. On the command line: `--network custom_network:averages`.

    Args:
        shapes: shape of each leaf of the observation.
        config: the configuration of the run.
    """
    (inputs,) = shapes["obs"]
    return Averages(inputs, config.hidden_size)


if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(CONFIG))
