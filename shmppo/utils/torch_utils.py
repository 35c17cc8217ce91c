"""Helpers around torch: aligned memory, threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this process, for as long as the context is open; acting is at one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def aligned_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros at a 64-byte boundary, whatever the allocator does."""
    size = math.prod(shape)
    raw = torch.zeros(size + ALIGNMENT // dtype.itemsize, dtype=dtype)
    skip = -raw.data_ptr() % ALIGNMENT // dtype.itemsize
    return raw[skip : skip + size].view(shape)
