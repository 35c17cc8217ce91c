"""Recurrent cores: torch modules for learning from whole sequences, and cells for acting one step at a time.

`CORES` is the registry. A core's state is packed into one vector per environment: parts × layers × H, where an LSTM has
the parts h and c and a GRU has the part h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from shmppo.utils.torch_utils import aligned_zeros


class ActingLinear:
    """A linear layer for acting: x @ weight + bias into preallocated memory, with the weight transposed."""

    def __init__(self, rows: int, inputs: int, outputs: int, out: Tensor | None = None) -> None:
        """Allocate the memory. out: [rows, outputs], where to write the result; a new tensor if None."""
        self.weight = aligned_zeros(inputs, outputs)
        self.bias = aligned_zeros(outputs)
        self.out = aligned_zeros(rows, outputs) if out is None else out

    def load(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        """Copy weights [outputs, part of the inputs] side by side, and the sum of the biases [outputs]."""
        torch.cat([w.t() for w in weights], out=self.weight)
        self.bias.copy_(biases[0])
        for bias in biases[1:]:
            self.bias.add_(bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs]. The next call overwrites the result."""
        return torch.addmm(self.bias, x, self.weight, out=self.out)


class Cell(Protocol):
    """One layer of a recurrent core, one step at a time, on preallocated memory."""

    def __init__(self, rows: int, inputs: int, hidden: int) -> None: ...

    def load(self, core: nn.Module, layer: int) -> None:
        """Copy the parameters of one layer of the torch module."""

    def step(self, x: Tensor, *state: Tensor) -> None:
        """Process x [rows, inputs] and update the parts of the state [rows, H] in place. The first is the output."""


def _layer_parameters(core: nn.Module, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights and biases of one layer of torch.nn.LSTM or torch.nn.GRU: input, state, input bias, state bias."""
    w_ih, w_hh, b_ih, b_hh = (
        getattr(core, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    return w_ih, w_hh, b_ih, b_hh


class LstmCell:
    """One LSTM layer with the gates i, f, g, o of torch.nn.LSTM. One matrix product computes all of them."""

    def __init__(self, rows: int, inputs: int, hidden: int) -> None:
        self.gates = ActingLinear(rows, inputs + hidden, 4 * hidden)
        self.joined = aligned_zeros(rows, inputs + hidden)
        self.input, self.previous = self.joined[:, :inputs], self.joined[:, inputs:]
        self.tanh_c = aligned_zeros(rows, hidden)
        out = self.gates.out
        self.if_gates, self.i, self.f = out[:, : 2 * hidden], out[:, :hidden], out[:, hidden : 2 * hidden]
        self.g, self.o = out[:, 2 * hidden : 3 * hidden], out[:, 3 * hidden :]

    def load(self, core: nn.Module, layer: int) -> None:
        w_ih, w_hh, b_ih, b_hh = _layer_parameters(core, layer)
        self.gates.load([w_ih, w_hh], [b_ih, b_hh])

    def step(self, x: Tensor, *state: Tensor) -> None:
        h, c = state
        self.input.copy_(x)
        self.previous.copy_(h)
        self.gates(self.joined)
        self.if_gates.sigmoid_()
        self.g.tanh_()
        self.o.sigmoid_()
        c.mul_(self.f).addcmul_(self.i, self.g)
        torch.tanh(c, out=self.tanh_c)
        torch.mul(self.o, self.tanh_c, out=h)


class GruCell:
    """One GRU layer with the gates r, z, n of torch.nn.GRU."""

    def __init__(self, rows: int, inputs: int, hidden: int) -> None:
        self.from_input = ActingLinear(rows, inputs, 3 * hidden)
        self.from_state = ActingLinear(rows, hidden, 3 * hidden)
        self.hidden = hidden
        self.input = aligned_zeros(rows, inputs)
        self.previous = aligned_zeros(rows, hidden)

    def load(self, core: nn.Module, layer: int) -> None:
        w_ih, w_hh, b_ih, b_hh = _layer_parameters(core, layer)
        self.from_input.load([w_ih], [b_ih])
        self.from_state.load([w_hh], [b_hh])

    def step(self, x: Tensor, *state: Tensor) -> None:
        (h,) = state
        self.input.copy_(x)
        self.previous.copy_(h)
        by_input = self.from_input(self.input)
        by_state = self.from_state(self.previous)
        gated = 2 * self.hidden
        rz = by_input[:, :gated].add_(by_state[:, :gated]).sigmoid_()
        r, z = rz[:, : self.hidden], rz[:, self.hidden :]
        n = by_input[:, gated:].addcmul_(r, by_state[:, gated:]).tanh_()
        torch.sub(self.previous, n, out=self.previous)
        torch.addcmul(n, z, self.previous, out=h)  # h' = n + z·(h − n)


@dataclass(frozen=True)
class CoreType:
    """A type of recurrent core: its torch module for learning, its cell for acting, and its state tensors."""

    module: Callable[[int, int, int], nn.Module]
    """Makes the torch module from the arguments (inputs, H, layers). Like torch.nn.GRU, it maps x [L, J, inputs] and
    the state to features [L, J, H] and the state after the last step. The state is one tensor [layers, J, H], or a
    tuple of them if there are several parts."""
    cell: type[Cell]
    """Class of one layer for acting."""
    parts: int
    """Number of tensors [layers, J, H] in the state."""


CORES: dict[str, CoreType] = {
    "lstm": CoreType(nn.LSTM, LstmCell, 2),
    "gru": CoreType(nn.GRU, GruCell, 1),
}
"""Recurrent cores by the name that --core takes."""
