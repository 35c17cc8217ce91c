"""The network of task A in plain torch: an LSTM cell that is called once per time step.

Trainers whose central learner loops over the steps of a sequence learn like this. With `--network
figures.peers.step_loop:make --learning central`, shmppo learns in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shmppo import TrainConfig


class StepLoop(nn.Module):
    """Linear, tanh, LSTM cell."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.features, self.state_size = units, 2 * units
        self.encode, self.cell = nn.Linear(inputs, units), nn.LSTMCell(units, units)

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Process J sequences of L steps.

        Args:
            obs: obs["obs"] is the observation, [L, J, D].
            first: bool [L, J], whether an episode starts.
            state: [J, 2·units], h and c before the first step.

        Returns:
            (h after each step [L, J, units], h and c after the last step [J, 2·units]).
        """
        h, c = state.chunk(2, -1)
        outputs = []
        encoded = torch.tanh(self.encode(obs["obs"]))
        for x, starts in zip(encoded, first, strict=True):
            keep = (~starts).unsqueeze(-1)
            h, c = self.cell(x, (h * keep, c * keep))
            outputs.append(h)
        return torch.stack(outputs), torch.cat([h, c], -1)


def make(shapes: Mapping[str, tuple[int, ...]], config: TrainConfig) -> nn.Module:
    """Make the network from the shape of the observation and --hidden-size."""
    (inputs,) = shapes["obs"]
    return StepLoop(inputs, config.hidden_size)
