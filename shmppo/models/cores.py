"""Recurrent cores: torch modules for learning from whole sequences, and cells for acting one step at a time.

`CORES` is the registry. A core's state is packed into one vector per environment: parts × layers × size of a part.
An LSTM has the parts h and c with H numbers each, and a GRU has the part h. An LMU has its memories as one part. An LRU
has the real and the imaginary part of h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from shmppo.models.gru import Gru
from shmppo.models.lmu import SIGNALS, Lmu, memory_size
from shmppo.models.lru import Lru
from shmppo.utils.torch_utils import aligned_zeros


class ActingLinear:
    """A linear layer for acting: x @ weight + bias into preallocated memory, with the weight transposed.

    Attributes:
        out: [rows, outputs], the result.
        array: the same memory for NumPy.
    """

    def __init__(self, rows: int, inputs: int, outputs: int, out: Tensor | None = None) -> None:
        """Allocate the memory. out: [rows, outputs], where to write the result; a new tensor if None."""
        self.weight = aligned_zeros(inputs, outputs)
        self.bias = aligned_zeros(outputs)
        self.out = aligned_zeros(rows, outputs) if out is None else out
        self.array: np.ndarray = self.out.numpy()

    def load(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        """Copy weights [outputs, part of the inputs] side by side, and the sum of the biases [outputs]."""
        torch.cat([w.t() for w in weights], out=self.weight)
        self.bias.copy_(biases[0])
        for bias in biases[1:]:
            self.bias.add_(bias)

    def halve(self, outputs: int) -> None:
        """Halve the first outputs. With σ(x) = ½ tanh(½x) + ½, one call of tanh then serves all gates."""
        self.weight[:, :outputs].mul_(0.5)
        self.bias[:outputs].mul_(0.5)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs]. The next call overwrites the result."""
        return torch.addmm(self.bias, x, self.weight, out=self.out)


class Cell(Protocol):
    """One layer of a recurrent core, one step at a time, on preallocated memory.

    torch computes the matrix products. All other operations are NumPy's, because their calls take less time.
    """

    def __init__(self, rows: int, core: nn.Module, layer: int) -> None:
        """Allocate the memory. rows: of each batch. core: the torch module. layer: index of its layer."""

    @property
    def output(self) -> Tensor | None:
        """[rows, H], where `step` writes its result. None: the first part of the state is the result."""

    def load(self) -> None:
        """Copy the parameters of the layer."""

    def step(self, x: np.ndarray, *state: np.ndarray) -> np.ndarray:
        """Process x [rows, inputs] and update the parts of the state [rows, …] in place. Returns the output [rows, H].

        The next call overwrites the output.
        """


def _layer_parameters(core: nn.Module, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights and biases of one layer of torch.nn.LSTM or torch.nn.GRU: input, state, input bias, state bias."""
    w_ih, w_hh, b_ih, b_hh = (
        getattr(core, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    return w_ih, w_hh, b_ih, b_hh


def _sigmoid_of_half(tanh: np.ndarray) -> None:
    """Replace tanh(½x) by σ(x), in place."""
    np.multiply(tanh, 0.5, tanh)
    np.add(tanh, 0.5, tanh)


class LstmCell:
    """One LSTM layer. One matrix product computes all gates, in the order i, f, o, g."""

    output = None

    def __init__(self, rows: int, core: nn.Module, layer: int) -> None:
        self.parameters = _layer_parameters(core, layer)
        inputs, hidden = (weight.shape[1] for weight in self.parameters[:2])
        self.gates = ActingLinear(rows, inputs + hidden, 4 * hidden)
        self.joined = aligned_zeros(rows, inputs + hidden)
        joined, gates = self.joined.numpy(), self.gates.array
        self.input, self.previous = joined[:, :inputs], joined[:, inputs:]
        self.tanh_c: np.ndarray = aligned_zeros(rows, hidden).numpy()
        self.i, self.f, self.o, self.g = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
        self.sigmoids = gates[:, : 3 * hidden]

    def load(self) -> None:
        # torch.nn.LSTM has the gates in the order i, f, g, o.
        w_ih, w_hh, b_ih, b_hh = (
            torch.cat([part[: 2 * hidden], part[3 * hidden :], part[2 * hidden : 3 * hidden]])
            for part in self.parameters
            for hidden in (len(part) // 4,)
        )
        self.gates.load([w_ih, w_hh], [b_ih, b_hh])
        self.gates.halve(self.sigmoids.shape[1])

    def step(self, x: np.ndarray, *state: np.ndarray) -> np.ndarray:
        h, c = state
        self.input[:] = x
        self.previous[:] = h
        self.gates(self.joined)
        np.tanh(self.gates.array, self.gates.array)
        _sigmoid_of_half(self.sigmoids)
        np.multiply(c, self.f, c)
        np.multiply(self.i, self.g, self.g)
        np.add(c, self.g, c)
        np.tanh(c, self.tanh_c)
        np.multiply(self.o, self.tanh_c, h)
        return h


class GruCell:
    """One GRU layer with the gates r, z, n of torch.nn.GRU."""

    output = None

    def __init__(self, rows: int, core: nn.Module, layer: int) -> None:
        self.parameters = _layer_parameters(core, layer)
        inputs, hidden = (weight.shape[1] for weight in self.parameters[:2])
        self.from_input = ActingLinear(rows, inputs, 3 * hidden)
        self.from_state = ActingLinear(rows, hidden, 3 * hidden)
        self.hidden = hidden
        self.input, self.previous = aligned_zeros(rows, inputs), aligned_zeros(rows, hidden)
        self.input_array: np.ndarray = self.input.numpy()
        self.previous_array: np.ndarray = self.previous.numpy()
        by_input, by_state = self.from_input.array, self.from_state.array
        self.rz, self.rz_state = by_input[:, : 2 * hidden], by_state[:, : 2 * hidden]
        self.r, self.z = self.rz[:, :hidden], self.rz[:, hidden:]
        self.n, self.n_state = by_input[:, 2 * hidden :], by_state[:, 2 * hidden :]

    def load(self) -> None:
        w_ih, w_hh, b_ih, b_hh = self.parameters
        self.from_input.load([w_ih], [b_ih])
        self.from_state.load([w_hh], [b_hh])
        for linear in (self.from_input, self.from_state):
            linear.halve(2 * self.hidden)

    def step(self, x: np.ndarray, *state: np.ndarray) -> np.ndarray:
        (h,) = state
        self.input_array[:] = x
        self.previous_array[:] = h
        self.from_input(self.input)
        self.from_state(self.previous)
        np.add(self.rz, self.rz_state, self.rz)
        np.tanh(self.rz, self.rz)
        _sigmoid_of_half(self.rz)
        np.multiply(self.r, self.n_state, self.n_state)
        np.add(self.n, self.n_state, self.n)
        np.tanh(self.n, self.n)
        np.subtract(self.previous_array, self.n, h)
        np.multiply(self.z, h, h)
        np.add(self.n, h, h)  # h' = n + z·(h − n)
        return h


class LmuCell:
    """One layer of `Lmu`. One product of constants updates the memories of all signals."""

    def __init__(self, rows: int, core: nn.Module, layer: int) -> None:
        assert isinstance(core, Lmu)
        self.module = core.layer_list[layer]
        order, (hidden, inputs) = self.module.memory.order, self.module.from_input.weight.shape
        self.signals = ActingLinear(rows, inputs, SIGNALS)
        self.read = ActingLinear(rows, SIGNALS * order + inputs, hidden)
        self.output = self.read.out
        self.transition = aligned_zeros(order, order)
        self.into: np.ndarray = aligned_zeros(order).numpy()
        self.joined = aligned_zeros(rows, SIGNALS * order + inputs)
        self.input = self.joined[:, SIGNALS * order :]
        self.previous, self.after = aligned_zeros(rows * SIGNALS, order), aligned_zeros(rows * SIGNALS, order)
        joined = self.joined.numpy()
        self.input_array, self.memory_array = joined[:, SIGNALS * order :], joined[:, : SIGNALS * order]
        self.previous_array: np.ndarray = self.previous.view(rows, -1).numpy()
        self.after_array: np.ndarray = self.after.view(rows, SIGNALS, order).numpy()

    def load(self) -> None:
        module = self.module
        self.signals.load([module.signals.weight], [module.signals.bias])
        self.read.load([module.from_memory.weight, module.from_input.weight], [module.from_input.bias])
        self.transition.copy_(module.memory.by_state[:, 0])
        self.into[:] = module.memory.by_input[0, 0].numpy()

    def step(self, x: np.ndarray, *state: np.ndarray) -> np.ndarray:
        (memory,) = state
        self.input_array[:] = x
        self.previous_array[:] = memory
        self.signals(self.input)
        np.multiply(self.signals.array[:, :, np.newaxis], self.into, self.after_array)
        self.after.addmm_(self.previous, self.transition)
        self.memory_array[:] = self.after_array.reshape(self.memory_array.shape)
        memory[:] = self.memory_array
        self.read(self.joined)
        np.tanh(self.read.array, self.read.array)
        return self.read.array


class LruCell:
    """One layer of `Lru`, with real numbers only. NumPy's products of complex numbers may depend on their position."""

    def __init__(self, rows: int, core: nn.Module, layer: int) -> None:
        assert isinstance(core, Lru)
        self.module = core.layer_list[layer]
        hidden, inputs = self.module.from_input.weight.shape
        self.into = ActingLinear(rows, inputs, 2 * hidden)
        self.read = ActingLinear(rows, 2 * hidden + inputs, hidden)
        self.output = self.read.out
        self.joined = aligned_zeros(rows, 2 * hidden + inputs)
        self.input = self.joined[:, 2 * hidden :]
        joined, into = self.joined.numpy(), self.into.array
        self.real, self.imaginary, self.input_array = np.split(joined, [hidden, 2 * hidden], 1)
        self.into_real, self.into_imaginary = into[:, :hidden], into[:, hidden:]
        self.by_real, self.by_imaginary, self.product = (aligned_zeros(n, hidden).numpy() for n in (1, 1, rows))

    def load(self) -> None:
        module = self.module
        by_real, by_imaginary, gamma = module.factors()
        self.by_real[:], self.by_imaginary[:] = by_real.numpy(), by_imaginary.numpy()
        twice = gamma.repeat(2)
        self.into.load([module.into.weight * twice.unsqueeze(1)], [module.into.bias * twice])
        self.read.load([module.from_state.weight, module.from_input.weight], [module.from_input.bias])

    def step(self, x: np.ndarray, *state: np.ndarray) -> np.ndarray:
        real, imaginary = state
        self.input_array[:] = x
        self.into(self.input)
        np.multiply(real, self.by_real, self.real)
        np.multiply(imaginary, self.by_imaginary, self.product)
        np.subtract(self.real, self.product, self.real)
        np.add(self.real, self.into_real, self.real)
        np.multiply(real, self.by_imaginary, self.imaginary)
        np.multiply(imaginary, self.by_real, self.product)
        np.add(self.imaginary, self.product, self.imaginary)
        np.add(self.imaginary, self.into_imaginary, self.imaginary)
        real[:], imaginary[:] = self.real, self.imaginary
        self.read(self.joined)
        np.tanh(self.read.array, self.read.array)
        return self.read.array


def _without_window(module: Callable[[int, int, int], nn.Module]) -> Callable[[int, int, int, int], nn.Module]:
    return lambda inputs, hidden, layers, window: module(inputs, hidden, layers)


def _hidden_size(hidden: int, window: int) -> int:
    return hidden


@dataclass(frozen=True)
class CoreType:
    """A type of recurrent core: its torch module for learning, its cell for acting, and its state tensors."""

    module: Callable[[int, int, int, int], nn.Module]
    """Makes the torch module from the arguments (inputs, H, layers, window in steps). Like torch.nn.GRU, it maps
    x [L, J, inputs] and the state to features [L, J, H] and the state after the last step. The state is one tensor
    [layers, J, size of a part], or a tuple of them if there are several parts."""
    cell: type[Cell]
    """Class of one layer for acting."""
    parts: int
    """Number of tensors in the state."""
    part_size: Callable[[int, int], int] = _hidden_size
    """Returns the size of one part in one layer, from the arguments (H, window in steps)."""


CORES: dict[str, CoreType] = {
    "lstm": CoreType(_without_window(nn.LSTM), LstmCell, 2),
    "gru": CoreType(_without_window(Gru), GruCell, 1),
    "lmu": CoreType(Lmu, LmuCell, 1, memory_size),
    "lru": CoreType(Lru, LruCell, 2),
}
"""Recurrent cores by the name that --core takes."""
