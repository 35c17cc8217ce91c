"""The global random generators of a process: those of NumPy (`np.random`), of Python (`random`), and of torch.

Environments may draw from them. Then each environment has its own ones, which take their place while its code runs: so
its numbers depend neither on the other environments of its process nor on the process.
"""

# ruff: noqa: NPY002 (this module is about NumPy's legacy generator)

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

_numpy: Any = np.random  # its type annotations lack two functions
NAMES = ("np.random", "random", "torch")


def _torch() -> Any:
    """Return torch. None: this process has not imported it, so nothing draws from its generator."""
    return sys.modules.get("torch")


def generator_states() -> list[Any]:
    """Return the states of all generators, in the order of NAMES, in a form that can be compared."""
    key: Any
    _, key, *rest = np.random.get_state()
    torch = _torch()
    return [(key.tobytes(), *rest), random.getstate(), torch and torch.get_rng_state().numpy().tobytes()]


def drawn_since(before: Sequence[Any]) -> set[str]:
    """Return the names of the generators whose states are not those of `before`, which `generator_states` returned."""
    pairs = zip(NAMES, before, generator_states(), strict=True)
    return {name for name, one, other in pairs if one != other}


class OwnGenerators:
    """The generators of one environment. In a `with` block, they take the place of the global ones."""

    def __init__(self, names: Collection[str]) -> None:
        """names: of the generators that the environment uses, among NAMES."""
        self._names = names
        self.seed(())

    def __bool__(self) -> bool:
        return bool(self._names)

    def seed(self, key: tuple[object, ...]) -> None:
        """Begin the streams of a key, for example those of an episode."""
        if not self._names:
            return
        seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
        self._numpy: Any = np.random.MT19937(seed)
        self._random = random.Random(seed).getstate()
        if torch := _torch():
            self._torch = torch.Generator().manual_seed(seed).get_state()

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        if "np.random" in self._names:
            self._numpy, own = _numpy.get_bit_generator(), self._numpy
            _numpy.set_bit_generator(own)
        if "random" in self._names:
            self._random, state = random.getstate(), self._random
            random.setstate(state)
        if "torch" in self._names and (torch := _torch()):
            self._torch, state = torch.get_rng_state(), self._torch
            torch.set_rng_state(state)


class WatchedGenerators(OwnGenerators):
    """Generators in place of all global ones.

    Attributes:
        drawn: names of those from which the body of a `with` block has drawn so far.
    """

    def __init__(self, *key: object) -> None:
        """key: see `seed`."""
        super().__init__(NAMES)
        self.drawn: set[str] = set()
        self.seed(key)

    def __enter__(self) -> None:
        super().__enter__()
        self._before = generator_states()

    def __exit__(self, *_: object) -> None:
        self.drawn |= drawn_since(self._before)
        super().__exit__()


@contextlib.contextmanager
def kept_generators(*key: object) -> Iterator[set[str]]:
    """Give the body generators with the streams of a key, and restore those of the process at its end.

    Yields:
        A set that then gets the names of those from which the body has drawn.
    """
    before = np.random.get_state()  # an exchange forgets a normal number that was drawn in advance
    watched = WatchedGenerators(*key)
    try:
        with watched:
            yield watched.drawn
    finally:
        np.random.set_state(before)
