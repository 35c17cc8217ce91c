"""The core `lru`: a linear recurrence with a complex state, and a tanh layer that reads the state.

Each unit has a complex number h. In a step it is multiplied by λ, and the input is added: h ← λ·h + γ·(B x + b). λ is
learned, with |λ| < 1, and γ = √(1 − |λ|²). The recurrence is that of the linear recurrent unit (Orvieto et al. 2023,
arXiv 2303.06349). But γ is not learned here, and the input has a bias. In the original, more layers, a normalization,
and a residual connection follow. Here one tanh layer reads h and x. Before training, all units decay equally fast, and
the angles of λ are evenly spaced, as in S4D-Lin (Gu et al. 2022, arXiv 2206.11893), so h is similar to a Fourier
transform of the recent inputs.

Axes: L steps, J sequences, H hidden units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LruLayer(nn.Module):
    """One layer. It maps x [L, J, inputs] and the parts of h, [J, H] each, to features [L, J, H] and the new parts."""

    def __init__(self, inputs: int, hidden: int, window: int) -> None:
        """Create the layer.

        Args:
            inputs: width of its input.
            hidden: H.
            window: steps in which each h decays to 1/e before training.
        """
        super().__init__()
        self.hidden = hidden
        angles = (torch.arange(hidden, dtype=torch.float64) + 0.5) * (math.pi / hidden)
        self.log_decay = nn.Parameter(torch.full((hidden,), -math.log(max(window, 2))))
        self.log_phase = nn.Parameter(torch.log(angles).float())
        self.into = nn.Linear(inputs, 2 * hidden)
        self.from_state = nn.Linear(2 * hidden, hidden, bias=False)
        self.from_input = nn.Linear(inputs, hidden)

    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Re λ, Im λ, and γ, [H] each. λ = exp(−exp(log_decay) + i·exp(log_phase)), and γ = √(1 − |λ|²)."""
        decay, phase = self.log_decay.exp(), self.log_phase.exp()
        size = torch.exp(-decay)
        return size * torch.cos(phase), size * torch.sin(phase), torch.sqrt(-torch.expm1(-2 * decay))

    def forward(self, x: Tensor, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features [L, J, H] and the parts of h after the last step, [J, H] each."""
        by_real, by_imaginary, gamma = self.factors()
        # The recurrence has the precision of its state, also with autocast.
        inputs = self.into(x).to(real.dtype).unflatten(-1, (2, -1)) * gamma  # [L, J, 2, H]
        steps = []
        for step in inputs.unbind():
            next_real = by_real * real - by_imaginary * imaginary + step[:, 0]
            imaginary = by_imaginary * real + by_real * imaginary + step[:, 1]
            real = next_real
            steps.append(torch.cat([real, imaginary], -1))
        parts = torch.stack(steps)
        features = torch.tanh(self.from_state(parts) + self.from_input(x))
        return features, real, imaginary


class Lru(nn.Module):
    """Layers with the interface of torch.nn.LSTM. The state is two tensors [layers, J, H]: Re h and Im h."""

    def __init__(self, inputs: int, hidden: int, layers: int, window: int) -> None:
        """Create the layers. inputs: width of the first layer's input. The other arguments are those of `LruLayer`."""
        super().__init__()
        self.layers = nn.ModuleList(LruLayer(hidden if i else inputs, hidden, window) for i in range(layers))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Map x [L, J, inputs] and the state to features [L, J, H] and the state after the last step."""
        reals, imaginaries = [], []
        for layer, real, imaginary in zip(self.layers, *(part.unbind() for part in state), strict=True):
            x, after_real, after_imaginary = layer(x, real, imaginary)
            reals.append(after_real)
            imaginaries.append(after_imaginary)
        return x, (torch.stack(reals), torch.stack(imaginaries))
