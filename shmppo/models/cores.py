"""Recurrent cores as torch modules.

`CORES` is the registry. A core's state is packed into one vector per environment: parts × layers × size of a part.
An LSTM has the parts h and c with H numbers each, and a GRU has the part h. An LMU has its memories as one part. An LRU
has the real and the imaginary part of h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from shmppo.models.lmu import Lmu, memory_size
from shmppo.models.lru import Lru


def _without_window(module: Callable[[int, int, int], nn.Module]) -> Callable[[int, int, int, int], nn.Module]:
    return lambda inputs, hidden, layers, window: module(inputs, hidden, layers)


def _hidden_size(hidden: int, window: int) -> int:
    return hidden


@dataclass(frozen=True)
class CoreType:
    """A type of recurrent core: its torch module and its state tensors."""

    module: Callable[[int, int, int, int], nn.Module]
    """Makes the torch module from the arguments (inputs, H, layers, window in steps). Like torch.nn.GRU, it maps
    x [L, J, inputs] and the state to features [L, J, H] and the state after the last step. The state is one tensor
    [layers, J, size of a part], or a tuple of them if there are several parts."""
    parts: int
    """Number of tensors in the state."""
    part_size: Callable[[int, int], int] = _hidden_size
    """Returns the size of one part in one layer, from the arguments (H, window in steps)."""


CORES: dict[str, CoreType] = {
    "lstm": CoreType(_without_window(nn.LSTM), 2),
    "gru": CoreType(_without_window(nn.GRU), 1),
    "lmu": CoreType(Lmu, 1, memory_size),
    "lru": CoreType(Lru, 2),
}
"""Recurrent cores by the name that --core takes."""
