"""The core `gtrxl`: a gated Transformer-XL (Parisotto et al. 2019, arXiv 1910.06764).

In each layer, a step attends to its own input and to those of the last K steps, and a gate combines the result with the
input; two linear layers and a second gate follow. The attention scores have learned weights for each distance in steps
(Shaw et al. 2018, arXiv 1803.02155).

The state of a layer is its memory: the normalized inputs of the last K steps, oldest first and without gradient, and
their number. A zero state is an empty memory. Layer n can see what happened n·K steps ago, through the layers below.

Axes: L steps, J sequences, H hidden units, K steps of the window, A heads, each of D = H / A units.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from shmppo.config.options import ATTENTION_HEADS


def memory_size(hidden: int, window: int) -> int:
    """Return the size of the state of one layer: K inputs of H numbers, and their count."""
    return window * hidden + 1


class Attention(nn.Module):
    """Multi-head attention to the inputs n of the last K steps and of the step itself.

    Each head applies its value layer to Σ w_j n_j, where w is the softmax of the scores. The score of step j for step i
    is W q·n_j / √D + V_d q + b_d, where q is the head's query of step i and d = i − j is the distance. `keys` has W,
    and `distances` has V and b, the longest distance first. Because the inputs themselves serve as keys, acting
    projects one step instead of the whole memory.
    """

    def __init__(self, hidden: int, window: int) -> None:
        super().__init__()
        self.size, self.window = hidden // ATTENTION_HEADS, window
        self.query = nn.Linear(hidden, hidden)
        self.keys = nn.ModuleList(nn.Linear(self.size, hidden, bias=False) for _ in range(ATTENTION_HEADS))
        self.distances = nn.ModuleList(nn.Linear(self.size, window + 1) for _ in range(ATTENTION_HEADS))
        self.values = nn.ModuleList(nn.Linear(hidden, self.size, bias=False) for _ in range(ATTENTION_HEADS))

    def forward(self, n: Tensor, memory: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to the last steps.

        Args:
            n: [J, L, H], inputs of the steps.
            memory: [J, K, H], inputs of the K steps before.
            count: [J, 1], number of steps in the memory; the rest, at its front, is masked.

        Returns:
            (result [J, L, H], memory after the last step [J, K, H]).
        """
        sequences, steps, hidden = n.shape
        heads, window = ATTENTION_HEADS, self.window
        seen = torch.cat([memory, n], 1)  # [J, K + L, H]
        query = self.query(n).view(sequences * steps, heads, self.size).transpose(0, 1)  # [A, J·L, D]
        by_key = torch.bmm(query * self.size**-0.5, _stacked(self.keys).transpose(1, 2))  # [A, J·L, H]
        by_key = by_key.view(heads, sequences, steps, hidden).transpose(0, 1).reshape(sequences, -1, hidden)
        bias = torch.stack([layer.bias for layer in linears(self.distances)]).unsqueeze(1)
        by_distance = torch.baddbmm(bias, query, _stacked(self.distances).transpose(1, 2))  # [A, J·L, K + 1]
        by_distance = by_distance.view(heads, sequences, steps, window + 1).transpose(0, 1)
        # Row i holds the scores of the steps i … i + K of `seen`. In rows of K + L + 1 numbers, read as rows of K + L,
        # each row begins one step later than the one before. The rest is outside the window.
        padded = functional.pad(by_distance, (0, steps), value=-math.inf).flatten(2)
        by_step = padded[:, :, : steps * (window + steps)].reshape(sequences, heads * steps, window + steps)
        scores = torch.baddbmm(by_step, by_key, seen.transpose(1, 2))  # [J, A·L, K + L]
        missing = torch.arange(window + steps, device=n.device) < window - count  # [J, K + L]
        scores += torch.zeros_like(missing, dtype=scores.dtype).masked_fill(missing, -math.inf).unsqueeze(1)
        mean = torch.bmm(torch.softmax(scores, -1), seen)  # [J, A·L, H]
        mean = mean.view(sequences, heads, steps, hidden).transpose(0, 1).reshape(heads, sequences * steps, hidden)
        result = torch.bmm(mean, _stacked(self.values).transpose(1, 2)).transpose(0, 1)  # [J·L, A, D]
        return result.reshape(sequences, steps, hidden), seen[:, steps:].detach()


def linears(layers: nn.ModuleList) -> list[nn.Linear]:
    """Return linear layers as a list with the right element type."""
    return cast("list[nn.Linear]", list(layers))


def _stacked(layers: nn.ModuleList) -> Tensor:
    """Return the weights of the layers of all heads, [A, outputs, inputs]."""
    return torch.stack([layer.weight for layer in linears(layers)])


class GtrxlLayer(nn.Module):
    """One layer: it maps x [J, L, H] and its memory to features [J, L, H] and the new memory (see `Attention`).

    A gate is a GRU whose state is x and whose input is the result of the attention or of the linear layers. The two
    normalizations have no scale and bias, because the linear maps that follow contain them.
    """

    def __init__(self, hidden: int, window: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, window)
        self.after_attention = nn.Linear(hidden, hidden)
        self.gate = nn.GRUCell(hidden, hidden)
        self.linears = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.second_gate = nn.GRUCell(hidden, hidden)

    def forward(self, x: Tensor, memory: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """See the class, and `Attention.forward`."""
        size = x.shape[-1:]
        attended, memory = self.attention(functional.layer_norm(x, size), memory, count)
        rows = self.gate(torch.relu(self.after_attention(attended)).flatten(0, 1), x.flatten(0, 1))
        y = functional.layer_norm(rows, size)
        for linear in self.linears:
            y = torch.relu(linear(y))
        return self.second_gate(y, rows).view(x.shape), memory


class Gtrxl(nn.Module):
    """The whole core: a linear layer, then the `GtrxlLayer`s. It has the interface of torch.nn.GRU."""

    def __init__(self, inputs: int, hidden: int, layers: int, window: int) -> None:
        """Create the layers. inputs: width of the input. The other arguments are those of `GtrxlLayer`."""
        super().__init__()
        self.into = nn.Linear(inputs, hidden)
        self.layers = nn.ModuleList(GtrxlLayer(hidden, window) for _ in range(layers))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map x [L, J, inputs] and the state to features [L, J, H] and the state after the last step.

        state: [layers, J, K·H + 1].
        """
        x = self.into(x.transpose(0, 1).contiguous())
        steps, states = x.shape[1], []
        for layer, before in zip(self.layers, state.unbind(), strict=True):
            memory, count = torch.unflatten(before[:, :-1], 1, (-1, x.shape[-1])), before[:, -1:]
            x, memory = layer(x, memory, count)
            states.append(torch.cat([memory.flatten(1), (count + steps).clamp(max=float(memory.shape[1]))], -1))
        return x.transpose(0, 1).contiguous(), torch.stack(states)
