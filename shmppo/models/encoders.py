"""Encoders turn stored observations into a feature vector, after the normalization of its numbers.

An image that needs convolutions has an encoder of its own. All other leaves share one, whose input is their values side
by side.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.spaces.observations import Leaf

MIN_SIDES = {"nature": 36, "a3c": 20}
"""Minimum height and width in pixels, by encoder: on smaller images the last convolution has no output."""


def network_input(leaf: Leaf, stored: Tensor) -> Tensor:
    """Convert stored values of a leaf to network input, float32.

    Vectors and bits keep their values; vectors must be normalized before. Codes become one-hot vectors, concatenated.
    Images are scaled to 0 … 1, and their axes are moved to [B, channels, height, width].

    Args:
        stored: [B, *leaf.shape].

    Returns:
        [B, leaf.input_size], or [B, channels, height, width] for an image.
    """
    if leaf.kind == "vector":
        return stored
    if leaf.kind == "bits":
        return stored.float()
    if leaf.kind == "codes":
        one_hot = torch.zeros(stored.shape[0], leaf.input_size, dtype=torch.float32, device=stored.device)
        return one_hot.scatter_(1, stored.long() + _offsets(leaf.sizes, stored.device), 1.0)
    ordered = stored.permute(0, *(axis + 1 for axis in leaf.image_axes)).reshape(-1, *leaf.image_size)
    return ordered.float().mul_(1 / leaf.max_value)


@functools.cache
def _offsets(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return where the one-hot vector of each code begins. A copy to a device cannot be part of a CUDA graph."""
    return torch.tensor([0, *itertools.accumulate(sizes[:-1])], device=device)


def input_shape(leaf: Leaf) -> tuple[int, ...]:
    """Shape of the network input of one value, without the batch axis."""
    return leaf.image_size if leaf.kind == "image" else (leaf.input_size,)


ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}
"""By value of --activation. `activate` and `slope` in kernels/vectors.h are the same for the kernels."""


class Mlp(nn.Module):
    """Linear layers, each followed by the activation. `LayerBuilder.encoder` makes the same layers for the kernels.

    Attributes:
        activation: see --activation.
        features: units of the last layer.
    """

    def __init__(self, inputs: int, config: TrainConfig) -> None:
        """Create the layers of --encoder-sizes. inputs: length of the input."""
        super().__init__()
        widths = [inputs, *config.encoder_sizes]
        self.activation = config.activation
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.features = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, …] to [B, features]."""
        activate, x = ACTIVATIONS[self.activation], x.flatten(1)
        for linear in self.linears:
            x = activate(linear(x))
        return x


class ConvolutionCnn(nn.Module):
    """Convolutions without padding and one linear layer, each with ReLU.

    Attributes:
        features: outputs of the linear layer.
        layers: (output channels, kernel size, stride) of each convolution.
    """

    features: int
    layers: ClassVar[tuple[tuple[int, int, int], ...]]

    def __init__(self, image: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *sides = image
        self.convolutions = nn.ModuleList()
        for wider, kernel, stride in self.layers:
            self.convolutions.append(nn.Conv2d(channels, wider, kernel, stride))
            sides = [(side - kernel) // stride + 1 for side in sides]
            channels = wider
        self.linear = nn.Linear(channels * sides[0] * sides[1], self.features)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, channels, height, width] to [B, features]."""
        x = x.contiguous(memory_format=torch.channels_last)  # faster on a CPU if there are several channels
        for convolution in self.convolutions:
            x = functional.relu(convolution(x))
        return functional.relu(self.linear(x.flatten(1)))


class NatureCnn(ConvolutionCnn):
    """Three convolutions and 512 features (Mnih et al. 2015, doi 10.1038/nature14236)."""

    features = 512
    layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class A3cCnn(ConvolutionCnn):
    """Two convolutions and 256 features (Mnih et al. 2016, arXiv 1602.01783, section 8)."""

    features = 256
    layers = ((16, 8, 4), (32, 4, 2))


class _ResidualBlock(nn.Module):
    """x plus two convolutions of x, each after a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.second(functional.relu(self.first(functional.relu(x))))
        return x + residual


class ImpalaCnn(nn.Module):
    """Three stages and one linear layer (Espeholt et al. 2018, arXiv 1802.01561, fig. 3).

    Each stage is a convolution, max pooling, and two residual blocks.
    """

    features = 256

    def __init__(self, image: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *sides = image
        stages: list[nn.Module] = []
        for wider in (16, 32, 32):
            first = nn.Conv2d(channels, wider, 3, padding=1)
            stages += [first, nn.MaxPool2d(3, stride=2, padding=1), _ResidualBlock(wider), _ResidualBlock(wider)]
            sides = [(side + 1) // 2 for side in sides]
            channels = wider
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(channels * sides[0] * sides[1], self.features)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, channels, height, width] to [B, features]."""
        x = self.stages[0](x.contiguous(memory_format=torch.channels_last))
        x = x.contiguous(memory_format=torch.channels_last)  # again: the first call does nothing to one channel
        x = functional.relu(self.stages[1:](x)).flatten(1)
        return functional.relu(self.linear(x))


class Encoder(nn.Module):
    """The encoder of one or more leaves: conversion to network input, then a network.

    Attributes:
        leaves: the leaves that it encodes, more than one only if the network is an MLP.
        indices: positions of these leaves among those of the trunk.
        features: width of the output.
    """

    def __init__(self, config: TrainConfig, leaves: Sequence[Leaf], indices: Sequence[int]) -> None:
        """Create the network. leaves: all leaves of the trunk. indices: positions of the leaves to encode."""
        super().__init__()
        self.indices = tuple(indices)
        self.leaves = tuple(leaves[i] for i in indices)
        first, inputs = self.leaves[0], sum(leaf.input_size for leaf in self.leaves)
        kind = network_kind(config, first)
        self.network = Mlp(inputs, config) if kind == "mlp" else _CNNS[kind](first.image_size)
        self.features = self.network.features

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        """Map observations to features [B, features].

        Args:
            obs: [B, …] for each leaf of the trunk, as stored. Vectors must be normalized before.
        """
        inputs = [network_input(leaf, obs[i]) for leaf, i in zip(self.leaves, self.indices, strict=True)]
        joined = inputs[0] if len(inputs) == 1 else torch.cat([part.flatten(1) for part in inputs], 1)
        features: Tensor = self.network(joined)
        return features


def is_linear(encoder: nn.Module) -> bool:
    """Whether an encoder has linear layers only, which the kernels compute."""
    return isinstance(encoder, Encoder) and isinstance(encoder.network, Mlp)


def encoders_of(config: TrainConfig, leaves: Sequence[Leaf], taken: Sequence[int] = ()) -> list[Encoder]:
    """Create the encoders of a trunk: one for each image that needs convolutions, and one for all other leaves.

    taken: indices of leaves without such an encoder.

    Raises:
        ConfigError: if an image is too small for `--encoder`.
    """
    free = [i for i in range(len(leaves)) if i not in taken]
    convolutions = [i for i in free if network_kind(config, leaves[i]) != "mlp"]
    others = [i for i in free if i not in convolutions]
    groups = sorted([[i] for i in convolutions] + ([others] if others else []))
    return [Encoder(config, leaves, group) for group in groups]


def network_kind(config: TrainConfig, leaf: Leaf) -> str:
    """Return "mlp", or the name of a convolutional network, as `--encoder` says."""
    if leaf.kind != "image":
        return "mlp"
    _, height, width = leaf.image_size
    large = min(height, width) >= MIN_SIDES["nature"]
    kind = config.encoder
    if kind == "auto" or config.has_own_encoder:
        kind = "nature" if large else "mlp"
    least = MIN_SIDES.get(kind, 1)
    if min(height, width) < least:
        raise ConfigError(
            f"--encoder {kind} needs images of {least} × {least} pixels or more, but {leaf.field} has "
            f"{height} × {width}; use impala or mlp"
        )
    return kind


_CNNS: dict[str, type[NatureCnn | A3cCnn | ImpalaCnn]] = {"nature": NatureCnn, "a3c": A3cCnn, "impala": ImpalaCnn}
