"""Recurrent networks for `--network figures.cores.networks:NAME`, run from the repository root.

- `MinGru`: a GRU whose gates depend on the input only (Feng et al. 2024, arXiv 2410.01201).
- `Ffm`: fast and forgetful memory (Morad et al. 2023, arXiv 2310.04128).

docs/concepts/cores.md compares them with the built-in cores. All recurrences are linear in their state, so the products
of weights and inputs are computed for all steps together. `--encoder-sizes`, `--hidden-size`, and `--num-layers` have
their usual meaning. Where a decay needs a time scale, it comes from --seq-len.

Axes: L steps, J sequences, H hidden units, S size of a layer's state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from figures.cores.averaging_scan import averaging_scan
from shmppo import TrainConfig
from shmppo.models.encoders import Mlp, orthogonal
from shmppo.models.lru import scan


class Layer(nn.Module):
    """One recurrent layer. It maps x [L, J, H] and its state [J, S] to y [L, J, H] and the state after the last step.

    Attributes:
        state_size: S.
    """

    state_size: int

    def __init__(self, hidden: int, window: int) -> None:
        """Create the layer. hidden: H. window: steps over which it should remember."""
        super().__init__()


class MinGruLayer(Layer):
    """h ← (1 − z)·h + z·c, where gate z and candidate c depend on the input only. A highway gate mixes h and x."""

    def __init__(self, hidden: int, window: int) -> None:
        super().__init__(hidden, window)
        self.state_size = hidden
        self.project = orthogonal(nn.Linear(hidden, 3 * hidden), 1.0)
        with torch.no_grad():  # time constants from 1 step to the window, as in arXiv 1804.11188
            steps = torch.linspace(0, math.log(max(window, 2)), hidden).exp()
            assert self.project.bias is not None
            self.project.bias[:hidden] = -torch.log(steps)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        update, candidate, highway = self.project(x).to(state.dtype).chunk(3, -1)
        h = averaging_scan(update, candidate, state)
        return torch.lerp(x, h, torch.sigmoid(highway)), h[-1]


class FfmLayer(Layer):
    """Traces with several decays, each rotating at several frequencies, and gates at the input and the output."""

    TRACES, CONTEXTS = 32, 4

    def __init__(self, hidden: int, window: int) -> None:
        super().__init__(hidden, window)
        self.state_size = 2 * self.TRACES * self.CONTEXTS
        longest = math.log(4.0 * max(window, 2))
        self.log_decay = nn.Parameter(-torch.linspace(0, longest, self.TRACES))  # time constants in steps
        self.log_phase = nn.Parameter(math.log(2 * math.pi) - torch.linspace(math.log(4), longest + 1, self.CONTEXTS))
        self.traces = orthogonal(nn.Linear(hidden, 2 * self.TRACES), 1.0)
        self.mix = orthogonal(nn.Linear(self.state_size, hidden), 1.0)
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.skip = orthogonal(nn.Linear(hidden, 2 * hidden), 1.0)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        value = functional.glu(self.traces(x).to(state.dtype)).unsqueeze(-1)  # [L, J, TRACES, 1]
        decay = torch.exp(-self.log_decay.exp()).unsqueeze(-1).expand(-1, self.CONTEXTS)
        rotation = torch.polar(decay, self.log_phase.exp().expand(self.TRACES, -1))
        start = torch.view_as_complex(state.unflatten(-1, (self.TRACES, self.CONTEXTS, 2)).contiguous())
        increment = torch.complex(value, torch.zeros_like(value)).expand(*value.shape[:-1], self.CONTEXTS).contiguous()
        h = torch.view_as_real(scan(rotation, increment, start)).flatten(2)
        skip, gate = self.skip(x).chunk(2, -1)
        return torch.lerp(skip, self.norm(self.mix(h)), torch.sigmoid(gate)), h[-1]


class RecurrentNetwork(nn.Module):
    """Tanh layers over all parts of the observation, then the recurrent layers. The state has those of all layers.

    Attributes:
        features: H.
        state_size: sum of the layers' S.
    """

    layer: ClassVar[type[Layer]]

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: TrainConfig) -> None:
        """Create the network. See `shmppo.models.custom`."""
        super().__init__()
        self.encode = Mlp(sum(map(math.prod, shapes.values())), config)
        self.features = config.hidden_size
        self.enter = orthogonal(nn.Linear(self.encode.features, self.features), 1.0)
        self.layers = nn.ModuleList(self.layer(self.features, config.seq_len) for _ in range(config.num_layers))
        self.sizes = [layer.state_size for layer in self.layers]
        self.state_size = sum(self.sizes)

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `shmppo.models.custom`. `first` is not needed, because the state is zero where an episode starts."""
        inputs = torch.cat([part.flatten(2) for part in obs.values()], -1)
        x = self.enter(self.encode(inputs.flatten(0, 1))).unflatten(0, inputs.shape[:2])
        states = []
        for layer, part in zip(self.layers, state.split(self.sizes, -1), strict=True):
            x, after = layer(x, part)
            states.append(after)
        return x, torch.cat(states, -1)


class MinGru(RecurrentNetwork):
    """Encoder and `MinGruLayer`."""

    layer = MinGruLayer


class Ffm(RecurrentNetwork):
    """Encoder and `FfmLayer`."""

    layer = FfmLayer


NETWORKS: dict[str, type[RecurrentNetwork]] = {"mingru": MinGru, "ffm": Ffm}
"""The networks by the names that the experiments use."""
