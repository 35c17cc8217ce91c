"""Observation spaces, described as lists of leaves.

A leaf is a space that is not a Dict or a Tuple. Each leaf has an array of its own in shared memory, with its own shape
and type. Values are stored nearly as the environment returns them: an image as bytes, a Discrete value as an integer.
`encoders.network_input` converts stored values to network input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from shmppo.config.checks import require
from shmppo.errors import ConfigError

NUMBERS = "biuf"
"""Kinds of NumPy types whose values are real numbers."""
DEFINED_BYTES = "?bBhHiIlLqQefd"
"""Codes of these types, except that of long doubles, which contain undefined bytes."""
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


def hashable(value: Any) -> np.ndarray:
    """Return a contiguous array for a hash of its bytes. Long doubles have undefined ones, so they become doubles."""
    array = np.ascontiguousarray(value)
    return array.astype(np.float64) if array.dtype.char == "g" else array


class ObservationError(ValueError):
    """An observation does not belong to its space. The message names the part, such as "obs has shape (2,), but …"."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of an observation space."""

    keys: tuple[str | int, ...]
    """Path of keys and indices to the leaf. Empty if the whole space is one leaf."""
    kind: Literal["vector", "codes", "bits", "image", "mask"]
    """How values are stored and encoded.

    vector: float32, normalized. codes: int32, encoded as one-hot vectors. bits: 0 or 1. image: uint8, scaled to 0 … 1.
    mask: 0 or 1 for each logit of the policy; it is not network input.
    """
    shape: tuple[int, ...]
    """Shape in storage. Images keep the environment's shape; all other kinds are flat: [size]."""
    env_shape: tuple[int, ...]
    """Shape of the value that the environment returns."""
    dtype: str
    """Type in storage."""
    starts: tuple[int, ...] = ()
    """Smallest value of each code."""
    sizes: tuple[int, ...] = ()
    """Number of values of each code."""
    max_value: int = 255
    """Largest value of an image."""

    @property
    def field(self) -> str:
        """Name of the leaf in shared memory: "obs", or "obs/camera" for a part."""
        return "/".join(["obs", *map(str, self.keys)])

    @property
    def name(self) -> str:
        """Keys of the leaf as one text, such as "camera" or "arm/0". Empty if the whole space is one leaf."""
        return "/".join(map(str, self.keys))

    @property
    def title(self) -> str:
        """Name of the leaf in messages: "obs", or "part 'camera' of obs"."""
        return f"part {self.name!r} of obs" if self.keys else "obs"

    @property
    def input_size(self) -> int:
        """Size of the leaf's network input as a flat vector."""
        return sum(self.sizes) if self.kind == "codes" else int(np.prod(self.shape))

    def extract(self, observation: Any) -> Any:
        """Return the leaf's part of an observation. Raises ObservationError if the observation has no such part."""
        try:
            for key in self.keys:
                observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            given = f"; it has {', '.join(map(repr, observation))}" if isinstance(observation, dict) else ""
            raise ObservationError(f"obs has no part {self.name!r}{given}") from error
        return observation

    def to_storage(self, value: Any, batch: tuple[int, ...] = ()) -> np.ndarray:
        """Convert a value from the environment to its stored shape. Codes are shifted to start at 0.

        Args:
            value: one value, or a batch of them.
            batch: shape of the batch; () for one value. The result has the shape [*batch, …].

        Raises:
            ObservationError: if the value is no array, or its shape, type, codes, or bits do not match the space.
        """
        try:
            array = np.asarray(value)
        except Exception as error:  # the values may be of any type
            raise ObservationError(f"{self.title} cannot be converted to an array: {error!r}") from error
        expected = (*batch, *self.env_shape)
        if array.shape != expected:
            raise ObservationError(f"{self.title} has shape {array.shape}, but its space has shape {expected}")
        if array.dtype.kind not in NUMBERS:
            raise ObservationError(f"{self.title} has type {array.dtype}, but it must contain real numbers")
        if self.kind in ("bits", "mask") and not ((array == 0) | (array == 1)).all():
            raise ObservationError(f"{self.title} is outside its space, whose values are 0 and 1")
        if self.kind == "image" and array.dtype != np.uint8:
            raise ObservationError(f"{self.title} has type {array.dtype}, but its space has type uint8")
        if self.kind == "codes":
            if array.dtype.kind == "f":
                raise ObservationError(f"{self.title} has type {array.dtype}, but it must contain integers")
            array = array.reshape(*batch, -1) - np.array(self.starts)
            if (array < 0).any() or (array >= np.array(self.sizes)).any():
                raise ObservationError(f"{self.title} is {' '.join(str(value).split())}, which is outside its space")
        return array.reshape(*batch, *self.shape)

    @property
    def image_axes(self) -> tuple[int, ...]:
        """Axes of a stored image in the order (stacked frames, channels, height, width).

        An image with two axes has height and width only. Otherwise the last three axes are height, width, and channels,
        with the channels first or last. Of the first and the last of these three axes, the shorter one has the
        channels. If they are equal, it is the last one. A fourth axis in front of them holds stacked frames.
        """
        if len(self.shape) == 2:
            return (0, 1)
        *frames, first, middle, last = range(len(self.shape))
        if self.shape[first] < self.shape[last]:
            return (*frames, first, middle, last)
        return (*frames, last, first, middle)

    @property
    def image_channels(self) -> Literal["first", "last", "none"]:
        """Where a value of an image has its channels: before or after height and width. none: it has no such axis."""
        if len(self.shape) == 2:
            return "none"
        return "last" if self.image_axes[-3] == len(self.shape) - 1 else "first"

    @property
    def image_size(self) -> tuple[int, int, int]:
        """Channels, height, and width of an image. Stacked frames count as channels."""
        *channels, height, width = (self.shape[axis] for axis in self.image_axes)
        return int(np.prod(channels)), height, width


@dataclass(frozen=True)
class ObservationSpec:
    """The leaves of an observation space, in the order of the space. An action mask is always the last leaf."""

    leaves: tuple[Leaf, ...]

    @property
    def normalized_size(self) -> int:
        """D: how many numbers are normalized, summed over all leaves of kind vector."""
        return sum(leaf.input_size for leaf in self.leaves if leaf.kind == "vector")

    @property
    def normalized_slices(self) -> list[slice | None]:
        """Slice of each leaf within the D normalized numbers. None for leaves that are not normalized."""
        sizes = [leaf.input_size if leaf.kind == "vector" else 0 for leaf in self.leaves]
        ends = zip(self.leaves, accumulate(sizes), strict=True)
        return [slice(end - leaf.input_size, end) if leaf.kind == "vector" else None for leaf, end in ends]

    @property
    def network_leaves(self) -> tuple[Leaf, ...]:
        """The leaves that are network input: all but the action mask."""
        return self.leaves[:-1] if self.has_mask else self.leaves

    @property
    def has_mask(self) -> bool:
        """Whether the last leaf is an action mask."""
        return self.leaves[-1].kind == "mask"

    def selected(self, keys: Sequence[str] | None, flag: str) -> tuple[int, ...]:
        """Return the indices of the network leaves that keys select.

        Args:
            keys: of parts of the observation; a key selects all leaves under it. None selects all leaves.
            flag: the flag that gave the keys, for the message.

        Raises:
            ConfigError: if there is no key, or if a key selects nothing.
        """
        names = [leaf.name for leaf in self.network_leaves]
        if keys is None:
            return tuple(range(len(names)))
        found = {key: {i for i, name in enumerate(names) if f"{name}/".startswith(f"{key}/")} for key in keys}
        unknown = [key for key, indices in found.items() if not indices]
        if unknown or not keys:
            has = f"has {', '.join(names)}" if all(names) else "is not a Dict"
            problem = f"{flag} {' '.join(unknown)} selects no part of" if unknown else f"{flag} must name a part of"
            raise ConfigError(f"{problem} the observation, which {has}; correct the key, or remove {flag}")
        return tuple(sorted(set().union(*found.values())))

    def with_mask(self) -> ObservationSpec:
        """Return a copy whose last leaf is an action mask."""
        return ObservationSpec((*self.leaves[:-1], dataclasses.replace(self.leaves[-1], kind="mask")))


def observation_spec(space: spaces.Space[Any], where: str) -> ObservationSpec:
    """Describe an observation space.

    Args:
        space: the space of the environment.
        where: name of the environment for error messages, such as "--env CartPole-v1".

    Raises:
        ConfigError: if the space is empty or not supported, or if two leaves have the same name.
    """
    leaves = _leaves(space, (), where)
    require(
        sum(leaf.input_size for leaf in leaves) > 0,
        f"{where} has the observation space {space}, which is empty; add a wrapper that returns at least one number",
    )
    require(
        len({leaf.field for leaf in leaves}) == len(leaves),
        f"{where} has two parts of its observation space with one name; rename the key that contains a slash",
    )
    return ObservationSpec(tuple(leaves))


def _leaves(space: spaces.Space[Any], keys: tuple[str | int, ...], where: str) -> list[Leaf]:
    """Describe a space and its parts recursively. `keys` is the path to the space."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        return [leaf for key, part in parts for leaf in _leaves(part, (*keys, key), where)]
    if isinstance(space, spaces.Discrete):
        return [Leaf(keys, "codes", (1,), (), "int32", (int(space.start),), (int(space.n),))]
    if isinstance(space, spaces.MultiDiscrete):
        starts, sizes = space.start.reshape(-1).tolist(), space.nvec.reshape(-1).tolist()
        return [Leaf(keys, "codes", (len(sizes),), space.nvec.shape, "int32", tuple(starts), tuple(sizes))]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(keys, "bits", (int(np.prod(space.shape)),), space.shape, "uint8")]
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and 2 <= len(space.shape) <= 4 and 0 not in space.shape:
            return [Leaf(keys, "image", space.shape, space.shape, "uint8", max_value=max(1, int(space.high.max())))]
        return [Leaf(keys, "vector", (int(np.prod(space.shape)),), space.shape, "float32")]
    part = f" at {'/'.join(map(str, keys))}" if keys else ""
    raise ConfigError(
        f"{where} has the observation space {type(space).__name__}{part}, which is not supported; supported are "
        f"{SUPPORTED}: convert or remove it with a wrapper, such as FilterObservation"
    )
