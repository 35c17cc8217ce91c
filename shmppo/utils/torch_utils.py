"""Helpers for torch: the modes in which a run computes, and aligned memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: the size of a cache line and of the widest vector load


@contextmanager
def numeric_modes(threads: int = 1) -> Iterator[None]:
    """Compute in the modes of a run while the context is open, whatever a script, library, or environment has set.

    torch uses `threads` threads and computes products of float32 matrices in float32. Denormal numbers are not replaced
    by 0, also after the context. Code of the user that is called in the context may change the modes again.
    """
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    set_numeric_modes(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def set_numeric_modes(threads: int = 1) -> None:
    """Set the modes of `numeric_modes`, which takes less than a microsecond."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)


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
