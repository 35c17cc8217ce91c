"""Encoders: from a leaf of the observation, as it is stored, to features. Each leaf has its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.observations import Leaf, network_input

NATURE_SMALLEST = 36  # pixels: what its three layers need
NATURE_FEATURES, IMPALA_FEATURES = 512, 256
IMPALA_CHANNELS = (16, 32, 32)

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: _Layer, gain: float) -> _Layer:
    """Orthogonal weights of the given gain, biases 0."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class TanhLayers(nn.Module):
    """Linear layers and tanh; with `layer_norm`, what enters each tanh is normalized over its units."""

    def __init__(self, inputs: int, sizes: Iterable[int], layer_norm: bool) -> None:
        super().__init__()
        widths = [inputs, *sizes]
        self.linears = nn.ModuleList(orthogonal(nn.Linear(a, b), math.sqrt(2)) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) if layer_norm else nn.Identity() for width in widths[1:])
        self.normalized = layer_norm
        self.features = widths[-1]

    @property
    def linear_list(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.linears))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, …] → [B, features]"""
        x = x.flatten(1)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = torch.tanh(norm(linear(x)))
        return x


class NatureCnn(nn.Module):
    """Three convolutions and a linear layer, ReLU (Mnih et al. 2015, doi 10.1038/nature14236)."""

    features = NATURE_FEATURES

    def __init__(self, image: tuple[int, int, int], layer_norm: bool) -> None:
        super().__init__()
        shapes = ((image[0], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        self.convolutions = nn.ModuleList(orthogonal(nn.Conv2d(*shape), math.sqrt(2)) for shape in shapes)
        sides = list(image[1:])
        for _, _, kernel, stride in shapes:
            sides = [(side - kernel) // stride + 1 for side in sides]
        self.linear = orthogonal(nn.Linear(64 * sides[0] * sides[1], self.features), math.sqrt(2))
        self.norm = nn.LayerNorm(self.features) if layer_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, height, width] → [B, features]"""
        for convolution in self.convolutions:
            x = functional.relu(convolution(x))
        return functional.relu(self.norm(self.linear(x.flatten(1))))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2))
        self.second = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.relu(self.first(functional.relu(x))))


class ImpalaCnn(nn.Module):
    """Three stages of a convolution, pooling and two residual blocks, and a linear layer (arXiv 1802.01561, fig. 3)."""

    features = IMPALA_FEATURES

    def __init__(self, image: tuple[int, int, int], layer_norm: bool) -> None:
        super().__init__()
        channels, *sides = image
        stages: list[nn.Module] = []
        for wider in IMPALA_CHANNELS:
            first = orthogonal(nn.Conv2d(channels, wider, 3, padding=1), math.sqrt(2))
            stages += [first, nn.MaxPool2d(3, stride=2, padding=1), _Residual(wider), _Residual(wider)]
            sides = [(side + 1) // 2 for side in sides]
            channels = wider
        self.stages = nn.Sequential(*stages)
        self.linear = orthogonal(nn.Linear(channels * sides[0] * sides[1], self.features), math.sqrt(2))
        self.norm = nn.LayerNorm(self.features) if layer_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, height, width] → [B, features]"""
        x = functional.relu(self.stages(x)).flatten(1)
        return functional.relu(self.norm(self.linear(x)))


class LeafEncoder(nn.Module):
    """One leaf's encoder."""

    def __init__(self, config: TrainConfig, leaf: Leaf) -> None:
        super().__init__()
        self.leaf = leaf
        self.network = _network_for(config, leaf)
        self.features = self.network.features

    def forward(self, stored: Tensor) -> Tensor:
        """stored [B, …], a vector normalized → [B, features]"""
        return self.network(network_input(self.leaf, stored))


def _network_for(config: TrainConfig, leaf: Leaf) -> TanhLayers | NatureCnn | ImpalaCnn:
    kind = "mlp"
    if leaf.kind == "image":
        large = min(leaf.image_size[1:]) >= NATURE_SMALLEST
        kind = config.encoder if config.encoder != "auto" else "nature" if large else "mlp"
        if kind == "nature" and not large:
            _, height, width = leaf.image_size
            raise ConfigError(
                f"--encoder nature needs images of {NATURE_SMALLEST} × {NATURE_SMALLEST} pixels or more, but "
                f"{leaf.field} has {height} × {width}; use impala or mlp"
            )
    if kind == "nature":
        return NatureCnn(leaf.image_size, config.layer_norm)
    if kind == "impala":
        return ImpalaCnn(leaf.image_size, config.layer_norm)
    return TanhLayers(leaf.numbers, config.encoder_sizes, config.layer_norm)
