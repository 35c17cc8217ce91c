"""Recurrent cores as torch modules.

`CORES` is the registry. A core's state is packed into one vector per environment: parts × layers × size of a part.
An LSTM has the parts h and c with H numbers each, and a GRU has the part h. An LMU has its memories as one part. An LRU
has the real and the imaginary part of h. A GTrXL has the memory of its last inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from shmppo.config.train_config import TrainConfig
from shmppo.models import gtrxl, lmu
from shmppo.models.lru import Lru


@dataclass(frozen=True)
class CoreType:
    """A type of recurrent core: its torch module and its state tensors."""

    module: Callable[[int, TrainConfig], nn.Module]
    """Makes the torch module from the width of its input and the configuration. Like torch.nn.GRU, it maps
    x [L, J, inputs] and the state to features [L, J, H] and the state after the last step. The state is one tensor
    [layers, J, size of a part], or a tuple of them if there are several parts."""
    parts: int
    """Number of tensors in the state."""
    part_size: Callable[[TrainConfig], int] = lambda config: config.hidden_size
    """Returns the size of one part in one layer."""


CORES: dict[str, CoreType] = {
    "lstm": CoreType(lambda inputs, c: nn.LSTM(inputs, c.hidden_size, c.num_layers), 2),
    "gru": CoreType(lambda inputs, c: nn.GRU(inputs, c.hidden_size, c.num_layers), 1),
    "lmu": CoreType(
        lambda inputs, c: lmu.Lmu(inputs, c.hidden_size, c.num_layers, c.seq_len),
        1,
        lambda c: lmu.memory_size(c.hidden_size, c.seq_len),
    ),
    "lru": CoreType(lambda inputs, c: Lru(inputs, c.hidden_size, c.num_layers, c.seq_len), 2),
    "gtrxl": CoreType(
        lambda inputs, c: gtrxl.Gtrxl(inputs, c.hidden_size, c.num_layers, c.attention_window),
        1,
        lambda c: gtrxl.memory_size(c.hidden_size, c.attention_window),
    ),
}
"""Recurrent cores by the name that --core takes."""
