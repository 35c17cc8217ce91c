"""What the policy is shown: an observation space as a list of leaves, each stored with its own shape and type.

A leaf is a space that is not a Dict or a Tuple. It lies in shared memory as the environment gave it (an image as bytes,
a Discrete as its number); what the network is fed is made of it in the leaf's encoder.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shmppo.errors import ConfigError

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


@dataclass(frozen=True)
class Leaf:
    """One leaf of an observation space."""

    keys: tuple[str | int, ...]
    """Where it lies in the observation; none where the space is itself a leaf."""
    kind: Literal["vector", "codes", "bits", "image", "mask"]
    """vector: float32, normalized; codes: int32, made one-hot; bits: 0 or 1; image: uint8, scaled to 0 … 1; mask: 0 or
    1 for each of the policy's logits, not shown to the network."""
    shape: tuple[int, ...]
    """As stored: [numbers], or as the environment gives it for an image."""
    given: tuple[int, ...]
    """Shape that the environment gives it in."""
    dtype: str
    """As stored."""
    starts: tuple[int, ...] = ()
    """Smallest value of each code."""
    sizes: tuple[int, ...] = ()
    """Number of values of each code."""
    largest: int = 255
    """Largest value of an image."""

    @property
    def field(self) -> str:
        """Its name in shared memory."""
        return "/".join(["obs", *map(str, self.keys)])

    @property
    def numbers(self) -> int:
        """Numbers of the network's input, as a flat vector."""
        return sum(self.sizes) if self.kind == "codes" else int(np.prod(self.shape))

    def of(self, observation: Any) -> Any:
        """The leaf's part of an observation."""
        for key in self.keys:
            observation = observation[key]
        return observation

    def stored(self, value: Any) -> np.ndarray:
        """A value as it is stored. Raises ValueError if it is not of the leaf's space."""
        array = np.asarray(value)
        if array.shape != self.given:
            raise ValueError(f"{self.field} of shape {array.shape}, but its space says {self.given}")
        if self.kind == "image" and array.dtype != np.uint8:
            raise ValueError(f"{self.field} of type {array.dtype}, but its space says uint8")
        if self.kind == "codes":
            array = array.reshape(-1) - np.array(self.starts)
            if (array < 0).any() or (array >= np.array(self.sizes)).any():
                raise ValueError(f"{self.field} is {value}, which is outside of its space")
        return array.reshape(self.shape)

    @property
    def image_axes(self) -> tuple[int, ...]:
        """The axes of a stored image in the order (stacked frames, channels, height, width), those that it has.

        Of the first and the last of three axes the shorter one holds the channels, the last one if they are equal; an
        axis before them stacks frames.
        """
        frames = tuple(range(len(self.shape) - 3))
        if len(self.shape) == 2:
            return (0, 1)
        first, middle, last = range(len(self.shape) - 3, len(self.shape))
        if self.shape[first] < self.shape[last]:
            return (*frames, first, middle, last)
        return (*frames, last, first, middle)

    @property
    def image_size(self) -> tuple[int, int, int]:
        """Channels (stacked frames are channels too), height and width of an image."""
        *channels, height, width = (self.shape[axis] for axis in self.image_axes)
        return int(np.prod(channels)), height, width


@dataclass(frozen=True)
class ObservationSpec:
    """The leaves of an observation space, in its own order."""

    leaves: tuple[Leaf, ...]

    @property
    def numbers(self) -> int:
        """D, numbers that are normalized: those of all vectors together."""
        return sum(leaf.numbers for leaf in self.leaves if leaf.kind == "vector")

    @property
    def normalized(self) -> list[slice | None]:
        """Where each leaf's numbers lie among the D that are normalized; None for those that are not."""
        parts: list[slice | None] = []
        begin = 0
        for leaf in self.leaves:
            if leaf.kind != "vector":
                parts.append(None)
            else:
                parts.append(slice(begin, begin + leaf.numbers))
                begin += leaf.numbers
        return parts

    @property
    def shown(self) -> tuple[Leaf, ...]:
        """The leaves that the network is shown."""
        return self.leaves[:-1] if self.masked else self.leaves

    @property
    def masked(self) -> bool:
        """Whether the last leaf says which actions are allowed."""
        return self.leaves[-1].kind == "mask"

    def with_mask(self) -> ObservationSpec:
        """The same with the last leaf as a mask."""
        return ObservationSpec((*self.leaves[:-1], dataclasses.replace(self.leaves[-1], kind="mask")))

    @property
    def plain(self) -> bool:
        """Whether the whole observation is one vector."""
        return len(self.leaves) == 1 and self.leaves[0].kind == "vector" and len(self.leaves[0].given) == 1


def observation_spec(space: spaces.Space, where: str) -> ObservationSpec:
    """The leaves of a space. Raises ConfigError, naming `where`, for one that is not supported."""
    leaves = _leaves(space, (), where)
    if sum(leaf.numbers for leaf in leaves) == 0:
        raise ConfigError(f"{where} has the observation space {space}, which is empty: wrap it to observe a number")
    names = [leaf.field for leaf in leaves]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"{where} has two parts of its observation space at {twice[0]}; rename the key with a / in it"
        )
    return ObservationSpec(tuple(leaves))


def _leaves(space: spaces.Space, keys: tuple[str | int, ...], where: str) -> list[Leaf]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _leaves(part, (*keys, key), where)]
    if isinstance(space, spaces.Tuple):
        return [leaf for key, part in enumerate(space.spaces) for leaf in _leaves(part, (*keys, key), where)]
    if isinstance(space, spaces.Discrete):
        return [Leaf(keys, "codes", (1,), (), "int32", (int(space.start),), (int(space.n),))]
    if isinstance(space, spaces.MultiDiscrete):
        starts, sizes = space.start.reshape(-1).tolist(), space.nvec.reshape(-1).tolist()
        return [Leaf(keys, "codes", (len(sizes),), space.nvec.shape, "int32", tuple(starts), tuple(sizes))]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(keys, "bits", (int(np.prod(space.shape)),), space.shape, "uint8")]
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and 2 <= len(space.shape) <= 4:
            return [Leaf(keys, "image", space.shape, space.shape, "uint8", largest=max(1, int(space.high.max())))]
        return [Leaf(keys, "vector", (int(np.prod(space.shape)),), space.shape, "float32")]
    part = f"has at {'/'.join(map(str, keys))} the observation space" if keys else "has the observation space"
    raise ConfigError(
        f"{where} {part} {type(space).__name__}, which is not supported; supported are {SUPPORTED}: change or drop it "
        "with a wrapper, such as FilterObservation"
    )


def network_input(leaf: Leaf, stored: Tensor) -> Tensor:
    """What a leaf's first layer is fed, float32, of stored values [B, …]: [B, numbers], or [B, C, height, width].

    A vector is as it comes (normalized before), codes are one-hot side by side, images lie in 0 … 1.
    """
    if leaf.kind == "vector":
        return stored
    if leaf.kind == "bits":
        return stored.float()
    if leaf.kind == "codes":
        offsets = torch.tensor([0, *itertools.accumulate(leaf.sizes[:-1])], device=stored.device)
        one_hot = torch.zeros(stored.shape[0], leaf.numbers, device=stored.device)
        return one_hot.scatter_(1, stored.long() + offsets, 1.0)
    ordered = stored.permute(0, *(axis + 1 for axis in leaf.image_axes)).reshape(-1, *leaf.image_size)
    return ordered.float().mul_(1 / leaf.largest)


def input_shape(leaf: Leaf) -> tuple[int, ...]:
    """Shape of what `network_input` makes of one value."""
    return leaf.image_size if leaf.kind == "image" else (leaf.numbers,)
