"""Functions of arrays, computed by the compiled kernels, with the same bits on each processor.

Without compiled kernels, NumPy computes them, except `orthonormalize` and `lru_factors`. The elementwise functions take
arrays of any shape; for float64 they are those of NumPy. `exp` is 0 below −87 and infinite above 87, `log` needs
positive normal numbers, and `softplus` is log(1 + exp(x)).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np

from shmppo.kernels import constants, kernels, supported_variants


def _elementwise(name: str, fallback: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Apply a function of network.c, given by its constant, to each element. Without kernels, apply the fallback."""
    if x.dtype != np.float32 or not x.size or not supported_variants():
        return fallback(x)
    result = np.array(x, order="C")
    address = ctypes.byref(ctypes.c_char.from_buffer(result.data))  # `result.ctypes` takes longer
    kernels().apply_function(constants()[name], address, address, result.size)
    return result


exp = functools.partial(_elementwise, "of_exp", np.exp)
tanh = functools.partial(_elementwise, "of_tanh", np.tanh)
sigmoid = functools.partial(_elementwise, "of_sigmoid", lambda x: 0.5 * np.tanh(0.5 * x) + 0.5)
log = functools.partial(_elementwise, "of_log", np.log)
softplus = functools.partial(_elementwise, "of_softplus", lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def norm(x: np.ndarray) -> float:
    """Return the L2 norm of a contiguous float32 array."""
    if not supported_variants():
        return float(np.sqrt(np.square(x, dtype=np.float64).sum()))
    length: float = kernels().norm(x.ctypes.data, x.size)
    return length


def add_rows(rows: np.ndarray, total: np.ndarray) -> None:
    """Write the sum of the rows of a float32 array [rows, n] to `total` [n]. They are added in their order."""
    if supported_variants():
        kernels().add_rows(rows.ctypes.data, len(rows), rows.strides[0] // 4, total.ctypes.data, total.size)
        return
    total[:] = rows[0]
    for row in rows[1:]:
        total += row


def adam(arrays: Sequence[np.ndarray], *numbers: float) -> None:
    """Step Adam, as network.c says.

    Args:
        arrays: weights, gradient, and both moments, each contiguous, float32, and [n].
        numbers: factor, a, b, rate, scale, and eps.
    """
    if supported_variants():
        kernels().adam(*(array.ctypes.data for array in arrays), arrays[0].size, *numbers)
        return
    weights, gradient, m, v = arrays
    factor, a, b, rate, scale, eps = np.array(numbers, np.float32)
    g = gradient * factor
    m += a * (g - m)
    v[:] = (1 - b) * v + b * (g * g)
    weights -= rate * m / (np.sqrt(v) * scale + eps)


def merge_moments(count: float, mean: np.ndarray, m2: np.ndarray, counts: np.ndarray, moments: np.ndarray) -> float:
    """Merge batches of samples into a mean and a sum of squared deviations, in order. Return the number of all samples.

    Batches are merged pairwise (Chan, Golub, LeVeque 1979): M2 = M2a + M2b + δ²·na·nb/(na+nb).

    Args:
        count: number of samples before.
        mean: float64 [size], updated in place.
        m2: float64 [size], the sum of squared deviations, updated in place.
        counts: [n], number of samples of each batch.
        moments: [n, 2, size], mean and sum of squared deviations of each batch.
    """
    if supported_variants():
        counts, moments = np.ascontiguousarray(counts, np.int64), np.ascontiguousarray(moments, np.float64)
        addresses = (array.ctypes.data for array in (mean, m2, counts, moments))
        merged: float = kernels().merge_moments(count, *addresses, len(counts), mean.size)
        return merged
    for own, (own_mean, own_m2) in zip(counts.tolist(), moments, strict=True):
        if own:
            total, delta = count + own, own_mean - mean
            mean += delta * (own / total)
            m2 += own_m2
            m2 += delta * delta * (count * own / total)
            count = total
    return count


def orthonormalize(matrix: np.ndarray) -> None:
    """Replace the columns of a float64 matrix by orthonormal ones. It needs compiled kernels.

    Args:
        matrix: [rows, columns], with rows >= columns.
    """
    products = np.empty(matrix.shape[1])
    kernels().orthonormalize(matrix.ctypes.data, *matrix.shape, products.ctypes.data)


def lru_factors(log_decay: np.ndarray, log_phase: np.ndarray, factors: np.ndarray, derivatives: np.ndarray) -> None:
    """Write the factors of a layer `lru`. It needs compiled kernels.

    Args:
        log_decay: [H].
        log_phase: [H].
        factors: [3 H], an output.
        derivatives: [5, H], an output; float64.c says of what.
    """
    parameters = log_decay.ctypes.data, log_phase.ctypes.data
    kernels().lru_factors(*parameters, len(log_decay), factors.ctypes.data, derivatives.ctypes.data)
