"""Helpers for torch: number of threads, aligned memory, optimizer steps with less overhead."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_EXCLUDED = "__dynamo_disable"  # attribute of torch, see `without_dynamo`
ALIGNMENT = 64  # bytes: the size of a cache line and of the widest vector load


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this process while the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Do not import torch._dynamo to create, save, or load an optimizer while the context is open.

    torch imports this compiler at the first call of some methods of Optimizer, to exclude them from compilation. The
    import takes about 2 s. It is not needed here, because nothing is compiled. torch looks up the excluded version of a
    method in the attribute `__dynamo_disable`. There is no public way to set it.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    names = ("add_param_group", "state_dict", "load_state_dict")
    methods = [inspect.unwrap(getattr(torch.optim.Optimizer, name)) for name in names]
    for method in methods:
        setattr(method, _EXCLUDED, method)
    try:
        yield
    finally:
        for method in methods:
            delattr(method, _EXCLUDED)


def bare_optimizer_step(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return a function that steps an optimizer without the wrappers of `step`.

    The wrappers, for profiling and graph capture, take as long as the step itself. torch has no public way to avoid
    them, so the method of the class is unwrapped here.
    """
    step: Callable[[torch.optim.Optimizer], object] = inspect.unwrap(type(optimizer).step)
    return functools.partial(torch.no_grad()(step), optimizer)
