"""The core `gtrxl`: a gated Transformer-XL, whose layers attend to their own last inputs.

In each layer, a step attends to its own input and to those of the last K steps, and a gate adds the result to the
input. A linear layer with a second gate follows (Parisotto et al. 2019, arXiv 1910.06764). Positions are relative: the
distance in steps enters each score (Dai et al. 2019, arXiv 1901.02860).

The state of a layer is its memory: the normalized inputs of the last K steps, without gradient, the latest one last,
and their number. A zero state is an empty memory. So layer n sees what was n·K steps ago.

Axes: L steps, J sequences, H hidden units, K steps of the window, A heads, each of D = H / A units.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


def memory_size(hidden: int, window: int) -> int:
    """Return the numbers in the state of one layer: K inputs of H numbers, and how many of them there are."""
    return window * hidden + 1


def positions(window: int, hidden: int) -> Tensor:
    """Return the encodings of the distances K … 0, [K + 1, H]: sines, then cosines (Vaswani et al. 2017, section 3.5).

    The wavelengths grow geometrically from 2π to 20,000π steps.
    """
    distances = torch.arange(window, -1, -1, dtype=torch.float64)
    frequencies = torch.exp(torch.arange(0, hidden, 2, dtype=torch.float64) * (-math.log(10_000) / hidden))
    angles = distances[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :hidden].float()


class Attention(nn.Module):
    """Attention with relative positions to the steps of a window.

    A score is (q_i + u)·W_k x_j + (q_i + v)·W_r r(i − j), with q_i = W_q x_i / √D (Dai et al. 2019, section 3.3). The
    product of a query and W_k is computed first, so that acting projects one step and not the whole memory.
    """

    def __init__(self, hidden: int, heads: int, window: int) -> None:
        super().__init__()
        self._window = window
        self._shape = heads, hidden // heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)
        self.position = nn.Linear(hidden, hidden, bias=False)
        self.content_bias, self.position_bias = (nn.Parameter(torch.zeros(heads, 1, hidden // heads)) for _ in range(2))
        self.register_buffer("encodings", positions(window, hidden), persistent=False)

    def forward(self, x: Tensor, memory: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to the last steps.

        Args:
            x: [J, L, H], inputs of the steps.
            memory: [J, K, H], inputs of the K steps before.
            count: [J, 1], number of steps in the memory; the others are at its front, and are not seen.

        Returns:
            (result [J, L, H], memory after the last step [J, K, H]).
        """
        sequences, steps, hidden = x.shape
        (heads, size), window = self._shape, self._window
        seen = torch.cat([memory, x], 1)  # [J, K + L, H]
        query = (self.query(x) * size**-0.5).view(sequences * steps, heads, size).transpose(0, 1)  # [A, J·L, D]
        content = torch.bmm(query + self.content_bias, self.key.weight.view(heads, size, hidden))
        content = content.view(heads, sequences, steps, hidden).transpose(0, 1).reshape(sequences, -1, hidden)
        encoded = self.position(self.encodings).view(window + 1, heads, size).permute(1, 2, 0)  # [A, D, K + 1]
        by_distance = torch.bmm(query + self.position_bias, encoded)  # [A, J·L, K + 1]
        by_distance = by_distance.view(heads, sequences, steps, window + 1).transpose(0, 1)
        # Row i holds the scores of the steps i … i + K of `seen`. In rows of K + L + 1 numbers, read as rows of K + L,
        # each row begins one step later than the one before. The rest is outside the window.
        padded = functional.pad(by_distance, (0, steps), value=-math.inf).flatten(2)
        by_position = padded[:, :, : steps * (window + steps)].reshape(sequences, heads * steps, window + steps)
        scores = torch.baddbmm(by_position, content, seen.transpose(1, 2))  # [J, A·L, K + L]
        missing = torch.arange(window + steps, device=x.device) < window - count  # [J, K + L]
        scores += torch.zeros_like(missing, dtype=scores.dtype).masked_fill(missing, -math.inf).unsqueeze(1)
        mean = torch.bmm(torch.softmax(scores, -1), seen)  # [J, A·L, H]
        mean = mean.view(sequences, heads, steps, hidden).transpose(0, 1).reshape(heads, sequences * steps, hidden)
        values = torch.bmm(mean, self.value.weight.view(heads, size, hidden).transpose(1, 2))  # [A, J·L, D]
        result = values.transpose(0, 1).reshape(sequences, steps, hidden)
        return result, seen[:, steps:].detach()


class Gate(nn.Module):
    """A gate like that of a GRU: it replaces part of x by a function of x and y (Parisotto et al. 2019, section 3.2).

    r = σ(W_r y + U_r x), z = σ(W_z y + U_z x − b), result (1 − z) x + z tanh(W_h y + U_h (r x)). The first b is 2, so
    most of x stays, and memory is learned after the reactions to the current step.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.from_y = nn.Linear(hidden, 3 * hidden)
        self.from_x = nn.Linear(hidden, 2 * hidden, bias=False)
        self.from_reset = nn.Linear(hidden, hidden, bias=False)
        self.keep = nn.Parameter(torch.full((hidden,), 2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the result [..., H] for x and y, [..., H] each."""
        of_gates, of_candidate = self.from_y(y).split([x.shape[-1] * 2, x.shape[-1]], -1)
        reset, update = (of_gates + self.from_x(x)).chunk(2, -1)
        candidate = torch.tanh(of_candidate + self.from_reset(torch.sigmoid(reset) * x))
        return torch.lerp(x, candidate, torch.sigmoid(update - self.keep))


class GtrxlLayer(nn.Module):
    """One layer. It maps x [J, L, H] and its memory to features [J, L, H] and the new memory (see `Attention`).

    Both normalizations have no parameters of their own, because the products that follow contain them.
    """

    def __init__(self, hidden: int, heads: int, window: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, window)
        self.after_attention = nn.Linear(hidden, hidden)
        self.gate = Gate(hidden)
        self.linears = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.second_gate = Gate(hidden)

    def forward(self, x: Tensor, memory: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """See the class, and `Attention.forward`."""
        size = x.shape[-1:]
        attended, memory = self.attention(functional.layer_norm(x, size), memory, count)
        x = self.gate(x, torch.relu(self.after_attention(attended)))
        return self.second_gate(x, self.linears(functional.layer_norm(x, size))), memory


class Gtrxl(nn.Module):
    """A linear layer, and the layers. It has the interface of torch.nn.GRU."""

    def __init__(self, inputs: int, hidden: int, layers: int, heads: int, window: int) -> None:
        """Create the layers. inputs: width of the input. The other arguments are those of `GtrxlLayer`."""
        super().__init__()
        self.into = nn.Linear(inputs, hidden)
        self.layers = nn.ModuleList(GtrxlLayer(hidden, heads, window) for _ in range(layers))

    @property
    def layer_list(self) -> list[GtrxlLayer]:
        """The layers as a list with the right element type."""
        return cast("list[GtrxlLayer]", list(self.layers))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map x [L, J, inputs] and the state to features [L, J, H] and the state after the last step.

        state: [layers, J, K·H + 1].
        """
        x = self.into(x.transpose(0, 1).contiguous())
        steps, states = x.shape[1], []
        for layer, before in zip(self.layer_list, state.unbind(), strict=True):
            memory, count = before[:, :-1].reshape(len(before), -1, x.shape[-1]), before[:, -1:]
            x, memory = layer(x, memory, count)
            states.append(torch.cat([memory.flatten(1), (count + steps).clamp(max=float(memory.shape[1]))], -1))
        return x.transpose(0, 1).contiguous(), torch.stack(states)
