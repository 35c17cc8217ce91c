"""Kernels in C: layers forward and backward, with the same bits on each processor. See kernels.h.

`Layer` and `Batch` are the structures of kernels.h, and `Kernels` calls its functions.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import machinery
from pathlib import Path
from typing import Any

import numpy as np

from shmppo.errors import ConfigError

VARIANTS = ("avx512bf16", "avx512", "avx2", "neon", "generic", "scalar")
"""The variants of the kernels, the fastest first. The last one is that of exported policies."""

_DIRECTORY = Path(__file__).parent


class Rows(ctypes.Structure):
    """Rows of floats: the address of the first one, and the floats from one row to the next."""

    _fields_ = (("at", ctypes.c_void_p), ("stride", ctypes.c_int64))


class Batch(ctypes.Structure):
    """The rows of some sequences, and which shards they belong to."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("steps", "sequences")),
        *((name, ctypes.c_void_p) for name in ("active", "index")),
        *((name, ctypes.c_int64) for name in ("shards", "first_shard")),
        *((name, ctypes.c_void_p) for name in ("order", "bounds")),
        ("gradient_stride", ctypes.c_int64),
    )


class Layer(ctypes.Structure):
    """A layer with the addresses of what it reads and writes."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "activation", "inputs", "outputs")),
        *((name, ctypes.c_int32) for name in ("bf16", "into_y", "into_by_x", "writes_state", "trains", "heads")),
        *((name, Rows) for name in ("x", "y", "by_x", "by_y")),
        ("state", Rows * 2),
        ("by_state", Rows),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "state_weight", "state_bias")),
        *((name, ctypes.c_void_p) for name in ("by_weight", "by_bias", "by_state_weight", "by_state_bias")),
        *((name, ctypes.c_void_p) for name in ("packed", "memory")),
    )


def rows(array: np.ndarray) -> Rows:
    """Return the rows of a float32 array [rows, width] whose last axis is contiguous."""
    return Rows(array.ctypes.data, array.strides[0] // 4)


class Kernels:
    """The functions of one variant."""

    def __init__(self, variant: str) -> None:
        library = ctypes.CDLL(str(_library_path()))
        address, size, count, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
        self.packed_size = _function(library, f"packed_size_{variant}", size, address)
        self.memory_size = _function(library, f"memory_size_{variant}", size, address, size, size)
        self.load_weights = _function(library, f"load_weights_{variant}", None, address, count)
        self.forward = _function(library, f"forward_{variant}", None, address, count, address)
        self.backward = _function(library, f"backward_{variant}", None, address, count, address)
        self.norm = _function(library, f"norm_{variant}", real, address, size)
        self.apply_function = _function(library, f"apply_function_{variant}", None, count, address, address, size)
        self.add_rows = _function(library, f"add_rows_{variant}", None, address, size, size, address, size)
        self.adam = _function(library, f"adam_{variant}", None, *[address] * 4, size, *[ctypes.c_float] * 6)
        # Functions of float64.c, which are the same in all variants.
        self.orthonormalize = _function(library, "orthonormalize", None, address, size, size, address)
        self.lru_factors = _function(library, "lru_factors", None, address, address, size, address, address)
        self.merge_moments = _function(library, "merge_moments", real, real, *[address] * 4, size, size)


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def _library_path() -> Path | None:
    """Return the compiled library beside this file, or None if the installation had no compiler."""
    paths = (_DIRECTORY / f"network{suffix}" for suffix in machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


@functools.cache
def supported_variants() -> list[str]:
    """Return the variants that this processor can run, the fastest first. Empty without a compiled library."""
    path = _library_path()
    if path is None:
        return []
    library = ctypes.CDLL(str(path))
    expected = []
    for kind in (Layer, Batch):
        expected += [getattr(kind, field[0]).offset for field in kind._fields_] + [ctypes.sizeof(kind)]
    found = []
    if hasattr(library, "structure_offset_generic"):
        offset = _function(library, "structure_offset_generic", ctypes.c_int64, ctypes.c_int)
        found = [offset(i) for i in range(len(expected) + 1)]
    if found != [*expected, -1]:
        raise ConfigError(f"the library in {_DIRECTORY} is of another version of shmppo; run `pip install -e .` again")
    compiled = [name for name in VARIANTS if hasattr(library, f"is_supported_{name}")]
    return [name for name in compiled if getattr(library, f"is_supported_{name}")()]


@functools.cache
def kernels(variant: str | None = None) -> Kernels:
    """Return the kernels of a variant, of the fastest one if None. Raises ConfigError without a compiled library."""
    if not supported_variants():
        raise ConfigError(f"{_DIRECTORY} has no compiled kernels; run `pip install -e .` with a C compiler")
    return Kernels(variant or supported_variants()[0])


@functools.cache
def constant_names() -> list[list[str]]:
    """Return the kinds of layers, activations, uses of results, and functions of kernels.h, in lower case."""
    texts = _function(ctypes.CDLL(str(_library_path())), "constants_generic", ctypes.c_char_p, ctypes.c_int)
    return [texts(i).decode().lower().split() for i in range(4)]


@functools.cache
def constants() -> dict[str, int]:
    """Return the values of all `constant_names`."""
    return {name: value for names in constant_names() for value, name in enumerate(names)}
