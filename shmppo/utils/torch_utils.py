"""Helpers for torch: the modes in which a run computes, and aligned memory."""

from __future__ import annotations

import ctypes
import functools
import math
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
_DEVICES = ("cpu", "cuda")
ALIGNMENT = 64  # bytes: the size of a cache line and of the widest vector load


@contextmanager
def numeric_modes(threads: int = 1) -> Iterator[None]:
    """Compute in the modes of a run while the context is open, whatever a script, library, or environment has set.

    torch uses `threads` threads and oneDNN, and computes in float32 without autocast or TF32. NumPy's products of
    matrices use one thread. Denormal numbers are not replaced by 0, also after the context. The default dtype stays
    that of the program. Code of the user that is called in the context may change the modes again.
    """
    backends: Any = torch.backends
    before, dtype, onednn = torch.get_num_threads(), torch.get_default_dtype(), backends.mkldnn.enabled
    autocast = {device: torch.is_autocast_enabled(device) for device in _DEVICES}
    precisions = [(part, part.fp32_precision) for part in _precise_parts()]
    tf32, of_products = True, "highest"
    with suppress(RuntimeError):  # torch refuses to tell it if the program has set the precision of parts
        of_products = torch.get_float32_matmul_precision()
    try:
        tf32 = backends.cudnn.allow_tf32
    except RuntimeError:
        _reset_precisions()
        with suppress(RuntimeError):  # now it tells False, but still refuses to tell True
            tf32 = backends.cudnn.allow_tf32
    blas_before = [(library, library.get()) for library in blas_libraries()]
    set_numeric_modes(threads)
    try:
        yield
    finally:
        for library, number in blas_before:
            library.set(number)
        torch.set_num_threads(before)
        torch.set_default_dtype(dtype)
        backends.mkldnn.enabled = onednn
        for device, enabled in autocast.items():
            torch.set_autocast_enabled(device, enabled)
        backends.cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision(of_products)
        for part, precision in precisions:
            if part.fp32_precision != precision:  # otherwise, it inherits the precision
                part.fp32_precision = precision


def set_numeric_modes(threads: int = 1) -> None:
    """Set the modes of `numeric_modes`, which takes a few microseconds."""
    for library in blas_libraries():
        library.set(1)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    backends: Any = torch.backends
    backends.mkldnn.enabled = True
    for device in _DEVICES:
        torch.set_autocast_enabled(device, False)
    _reset_precisions()
    backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def _reset_precisions() -> None:
    """Remove the precision of each part of torch."""
    for part in _precise_parts():
        part.fp32_precision = "none"


@functools.lru_cache
def _precise_parts() -> list[Any]:
    """Return the parts of torch that can have a precision of their own, each after those from which it inherits.

    There are none before torch 2.9.
    """
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return []
    of_cpu, of_gpu = backends.mkldnn, backends.cudnn
    return [
        backends, of_gpu, of_gpu.conv, of_gpu.rnn, backends.cuda.matmul, of_cpu.matmul, of_cpu.conv, of_cpu.rnn
    ]  # fmt: skip


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
