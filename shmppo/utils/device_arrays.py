"""Arrays on a device that NumPy's functions accept, so that a formula is written once, for NumPy, and runs on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

_TORCH: dict[str, Callable[..., Any]] = {
    "add.reduce": lambda x, axis=0, dtype=None, keepdims=False: x.sum(axis, keepdims, dtype=dtype),
    "maximum.reduce": lambda x, axis=0, keepdims=False: x.amax(axis, keepdims),
    "subtract": lambda x, y: (x.float() if getattr(x, "dtype", None) == torch.bool else x) - y,
    "equal": torch.eq,  # torch.equal compares whole tensors
    "bitwise_and": torch.logical_and,
    "concatenate": torch.cat,
    "take_along_axis": torch.take_along_dim,
    "polyval": lambda p, x: functools.reduce(lambda y, coefficient: y * x + coefficient, p.unbind(), 0 * x),
    "split": lambda x, parts, axis: x.chunk(parts, axis),
}
"""The functions of torch that have another name or other arguments than those of NumPy."""
_NEED_TENSORS = ("maximum", "minimum")
"""Functions of torch that do not accept numbers."""


class DeviceArray(NDArrayOperatorsMixin):
    """A tensor with the part of NumPy's interface that losses and distributions use.

    Operators and functions of NumPy call those of torch, without waiting for the device. Arrays of NumPy among their
    arguments are constants: they are copied to the device once.

    Attributes:
        tensor: on the device, without gradients.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.dtype, self.shape, self.ndim = tensor.dtype, tuple(tensor.shape), tensor.ndim

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *args: Any, out: Sequence[DeviceArray] = (), **options: Any
    ) -> Any:
        """Apply an elementwise function or a reduction of NumPy."""
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return self._apply(name, args, options, out)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: dict[str, Any]) -> Any:
        """Apply another function of NumPy."""
        return self._apply(function.__name__, args, options)

    def _apply(self, name: str, args: Any, options: dict[str, Any], out: Sequence[DeviceArray] = ()) -> Any:
        function = _TORCH.get(name) or getattr(torch, name)
        if name in _NEED_TENSORS:
            args = [torch.full_like(self.tensor[:1], x) if isinstance(x, (int, float)) else x for x in args]
        result = function(*map(self._unwrapped, args), **{k: self._unwrapped(x) for k, x in options.items()})
        for array in out:
            array.tensor.copy_(result)
            return array
        return DeviceArray(result) if isinstance(result, Tensor) else tuple(map(DeviceArray, result))

    def _unwrapped(self, argument: Any) -> Any:
        """Convert an argument of a function of NumPy to one of torch."""
        match argument:
            case DeviceArray():
                return argument.tensor
            case np.ndarray():
                return _constant(argument.tobytes(), argument.dtype.str, argument.shape, str(self.tensor.device))
            case np.generic():
                return argument.item()
            case list() | tuple():
                return [self._unwrapped(one) for one in argument]
            case type():
                return torch_dtype(argument)
        return argument

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self.tensor[self._unwrapped(key) if isinstance(key, np.ndarray) else key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tensor[key] = self._unwrapped(value)

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def T(self) -> DeviceArray:  # noqa: N802 (NumPy's name)
        """The transpose of a matrix."""
        return DeviceArray(self.tensor.mT)

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        """Convert to another type."""
        return DeviceArray(self.tensor.to(torch_dtype(dtype), copy=copy))

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same elements with another shape."""
        return DeviceArray(self.tensor.reshape(*shape))

    def prod(self, axis: int) -> DeviceArray:
        """Return the product along an axis."""
        return DeviceArray(self.tensor.prod(axis))


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a `DeviceArray`, for code that is typed for NumPy."""
    array: Any = DeviceArray(tensor)
    return cast(np.ndarray, array)


def as_tensor(array: np.ndarray) -> Tensor:
    """Return the tensor of what `as_array` has returned, or of a result of it."""
    return cast(DeviceArray, array).tensor


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return torch's type for one of NumPy or torch."""
    return dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, dtype)).dtype


@functools.cache
def _constant(content: bytes, dtype: str, shape: tuple[int, ...], device: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype).reshape(shape).copy()).to(device)
