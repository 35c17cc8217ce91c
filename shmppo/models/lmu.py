"""The core `lmu`: a linear memory of a time window, and a tanh layer that reads it.

The input of a layer is reduced to a few signals. The memory of a signal has the coefficients of the first D Legendre
polynomials that approximate the signal over the last θ steps. The memory m of a signal u is linear: m ← Ā m + B̄ u. The
matrices Ā and B̄ are constant. They are those of the Legendre memory unit (Voelker et al. 2019). That the memory has
no nonlinear feedback is of Chilkuri & Eliasmith 2021.

Axes: L steps, J sequences, H hidden units, K signals, D coefficients per signal.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

SIGNALS = 8


def memory_order(hidden: int, window: int) -> int:
    """Return D: a coefficient per step of the window, but at least 2, and at most H / 2."""
    return max(2, min(window, hidden // 2))


def memory_size(hidden: int, window: int) -> int:
    """Return the numbers in the state of one layer, K·D."""
    return SIGNALS * memory_order(hidden, window)


def delay_network(order: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices of the delay network for steps of length 1 (Voelker et al. 2019, eq. 2; zero-order hold).

    Args:
        order: D, number of Legendre coefficients.
        theta: θ, length of the window in steps.

    Returns:
        Ā [D, D] and B̄ [D], float64.
    """
    i = np.arange(order)
    row, column = i[:, np.newaxis], i[np.newaxis, :]
    sign = np.where(row < column, -1.0, (-1.0) ** (row - column + 1))
    continuous = np.zeros((order + 1, order + 1))
    continuous[:order, :order] = (2 * row + 1) * sign / theta
    continuous[:order, order] = (2 * i + 1) * (-1.0) ** i / theta
    discrete = _matrix_exp(continuous)  # [[A, B], [0, 0]] gives [[Ā, B̄], [0, 1]]
    return discrete[:order, :order], discrete[:order, order]


def _matrix_exp(matrix: np.ndarray) -> np.ndarray:
    """Return the exponential of a float64 matrix, by scaling and squaring.

    `torch.linalg.matrix_exp` gives other bits on other processors, because its products do.
    """
    halvings = max(0, math.frexp(np.abs(matrix).sum(1).max())[1] + 1)
    result = term = np.eye(len(matrix))
    for k in range(1, 20):
        term = _product(term, matrix / (2.0**halvings * k))
        result = result + term
    for _ in range(halvings):
        result = _product(result, result)
    return result


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product of two matrices, summed in ascending order."""
    result = np.zeros_like(a)
    for k in range(len(a)):
        result += a[:, k, np.newaxis] * b[k]
    return result


class DelayMemory(nn.Module):
    """Memories of signals. It has no parameters.

    Attributes:
        order: D.
    """

    transition: Tensor
    """Ā [D, D]."""
    into: Tensor
    """B̄ [D]."""

    def __init__(self, order: int, window: int) -> None:
        """Compute the constants. order: D. window: θ, in steps."""
        super().__init__()
        self.order = order
        transition, into = delay_network(order, float(max(window, 2)))
        # Processes do not share buffers, and checkpoints need not contain constants.
        self.register_buffer("transition", torch.tensor(transition, dtype=torch.float32), persistent=False)
        self.register_buffer("into", torch.tensor(into, dtype=torch.float32), persistent=False)

    def forward(self, signals: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the memories after each step, always in the precision of the state.

        Args:
            signals: [L, J, K].
            state: [J, K·D], memories before the first step.

        Returns:
            (memories after each step [L, J, K·D], those after the last step [J, K·D]).
        """
        memory, memories = torch.unflatten(state, -1, (-1, self.order)), []  # [J, K, D]
        # bf16 has too few digits for a recurrence.
        with torch.autocast(signals.device.type, enabled=False):
            for signal in signals.to(state.dtype).unbind():
                memory = memory @ self.transition.t() + signal.unsqueeze(-1) * self.into
                memories.append(memory.flatten(1))
        return torch.stack(memories), memories[-1]


class LmuLayer(nn.Module):
    """Signals of the input, their memories, and tanh of a linear layer of the memories and the input."""

    def __init__(self, inputs: int, hidden: int, window: int) -> None:
        """Create the layer. inputs: width of its input. hidden: H. window: θ, in steps."""
        super().__init__()
        self.signals = nn.Linear(inputs, SIGNALS)
        self.memory = DelayMemory(memory_order(hidden, window), window)
        self.from_memory = nn.Linear(memory_size(hidden, window), hidden, bias=False)
        self.from_input = nn.Linear(inputs, hidden)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map x [L, J, inputs] and the state [J, K·D] to features [L, J, H] and the state after the last step."""
        memories, after = self.memory(self.signals(x), state)
        return torch.tanh(self.from_memory(memories) + self.from_input(x)), after


class Lmu(nn.Module):
    """Layers with the interface of torch.nn.GRU. The state is one tensor [layers, J, K·D]."""

    def __init__(self, inputs: int, hidden: int, layers: int, window: int) -> None:
        """Create the layers. inputs: width of the first layer's input. hidden: H. window: θ, in steps."""
        super().__init__()
        self.layers = nn.ModuleList(LmuLayer(hidden if i else inputs, hidden, window) for i in range(layers))

    @property
    def constant_products(self) -> int:
        """Multiplications per step by constants. The number of weights does not count them."""
        return sum(SIGNALS * memory.order**2 for memory in self.modules() if isinstance(memory, DelayMemory))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map x [L, J, inputs] and the state to features [L, J, H] and the state after the last step."""
        states = []
        for layer, part in zip(self.layers, state.unbind(), strict=True):
            x, after = layer(x, part)
            states.append(after)
        return x, torch.stack(states)
