"""Helpers for torch: number of threads, and aligned memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: the size of a cache line and of the widest vector load


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads and compute products in float32 while the context is open."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(count)
    full_precision()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def full_precision() -> None:
    """Compute products of float32 matrices in float32, where a script or an environment may have allowed less."""
    torch.set_float32_matmul_precision("highest")


def keep_denormals() -> None:
    """Compute with denormal numbers in this thread, where a library of an environment may have replaced them by 0."""
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
