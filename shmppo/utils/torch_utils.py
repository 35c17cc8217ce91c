"""Helpers for torch: the modes in which a run computes, and aligned memory."""

from __future__ import annotations

import ctypes
import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLAS_SETTERS = (
    *(f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")),
    "MKL_Set_Num_Threads",
)
"""Functions of OpenBLAS, as NumPy, SciPy, and the system have it, and of MKL."""
_SETTINGS = (
    "backends.mkldnn.enabled", "backends.cudnn.allow_tf32", "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision", "backends.mkldnn.matmul.fp32_precision",
    "backends.cudnn.conv.fp32_precision", "backends.cudnn.rnn.fp32_precision",
)  # fmt: skip
"""What runs set in torch, in the order in which it is restored: parts inherit the precision of the whole."""
ALIGNMENT = 64  # bytes: the size of a cache line and of the widest vector load


@contextmanager
def numeric_modes(threads: int = 1) -> Iterator[None]:
    """Compute in the modes of a run while the context is open, whatever a script, library, or environment has set.

    torch uses `threads` threads and oneDNN, and computes with float32 in float32. NumPy's products of matrices use one
    thread. Denormal numbers are not replaced by 0, also after the context. The default dtype is that of the program.
    Code of the user that is called in the context may change the modes again.
    """
    before, dtype, settings, precision = torch.get_num_threads(), torch.get_default_dtype(), _settings(), ""
    with suppress(RuntimeError):  # torch refuses if a program has used its newer settings of precision
        precision = torch.get_float32_matmul_precision()
    blas_before = [(library, library.get()) for library in blas_libraries()]
    set_numeric_modes(threads)
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for library, number in blas_before:
            library.set(number)
        torch.set_num_threads(before)
        torch.set_default_dtype(dtype)
        if precision:
            torch.set_float32_matmul_precision(precision)
        for part, name, value in settings:
            if (part, name, value) not in _settings():
                setattr(part, name, value)


def set_numeric_modes(threads: int = 1) -> None:
    """Set the modes of `numeric_modes`, which takes a few microseconds."""
    for library in blas_libraries():
        library.set(1)
    torch.set_num_threads(threads)
    backends: Any = torch.backends
    backends.mkldnn.enabled, backends.cudnn.allow_tf32 = True, False
    backends.fp32_precision = "none"  # the precision of a part decides; torch before 2.9 ignores it
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)


def _settings() -> list[tuple[Any, str, Any]]:
    """Return `_SETTINGS` that this version of torch has: the part of torch, the name in it, and the present value."""
    found = []
    for path, _, name in (setting.rpartition(".") for setting in _SETTINGS):
        with suppress(AttributeError, RuntimeError):  # some settings contradict one another
            part = operator.attrgetter(path)(torch)
            found.append((part, name, getattr(part, name)))
    return found


class BlasLibrary(NamedTuple):
    """The functions of a loaded BLAS library that set and return its number of threads, which decides the bits."""

    set: Callable[[int], None]
    get: Callable[[], int]


@functools.lru_cache
def blas_libraries() -> list[BlasLibrary]:
    """Return the libraries OpenBLAS and MKL that this process had loaded at the first call. Only Linux lists them.

    After code of the user, which may load others, call `blas_libraries.cache_clear`.
    """
    found = []
    with suppress(OSError):
        names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        for library in (ctypes.CDLL(name) for name in sorted(names) if "openblas" in name or "libmkl_rt" in name):
            for setter in BLAS_SETTERS:
                if hasattr(library, setter):
                    getter = setter.replace("_set_", "_get_").replace("MKL_Set", "MKL_Get_Max")
                    found.append(BlasLibrary(getattr(library, setter), getattr(library, getter)))
    return found


def aligned_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of zeros whose memory starts at a multiple of ALIGNMENT."""
    size = math.prod(shape)
    raw = torch.zeros(size + ALIGNMENT // dtype.itemsize, dtype=dtype)
    skip = -raw.data_ptr() % ALIGNMENT // dtype.itemsize
    return raw[skip : skip + size].view(shape)


def aligned_rows(*shape: int) -> Tensor:
    """Return a float32 tensor of zeros in which every row, along the last axis, starts at a multiple of ALIGNMENT."""
    *rows, size = shape
    step = ALIGNMENT // torch.float32.itemsize
    return aligned_zeros(*rows, -(-size // step) * step)[..., :size]
