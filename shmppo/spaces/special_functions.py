"""The logarithm, log Γ, and the first two derivatives of log Γ, for float64 arrays.

Results have the same bits on every processor and for every shape, because all operations are elementwise and IEEE 754
defines their rounding. With y = z + 8, log Γ(z) = log Γ(y) − log P, where P = z (z + 1) … (z + 7). An asymptotic series
gives log Γ(y) (Abramowitz and Stegun 1964, equations 6.1.40, 6.3.18, and 6.4.12). With u = z (z + 7), P is
u (u + 6) (u + 10) (u + 12). Errors are below 1e-13 times the value, or 1e-13 if the value is below 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SQRT_HALF = math.sqrt(0.5)
_LOG_2 = math.log(2)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_ODD = np.arange(17.0, 0, -2)
_EVEN = np.arange(10.0, 0, -2)
_BERNOULLI = np.array([5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6])  # B₁₀, B₈, … B₂
_PAIRS = (0, 6, 10, 12)


def log(x: Floats) -> Floats:
    """Return log x for normal x > 0.

    With x = m·2ᵉ, ½ ≤ m < 1, and s = (m − √½)/(m + √½), it is (e − ½)·log 2 + 2·(s + s³/3 + … + s¹⁷/17).
    """
    mantissa, exponent = np.frexp(x)
    s = (mantissa - _SQRT_HALF) / (mantissa + _SQRT_HALF)
    return (exponent - 0.5) * _LOG_2 + 2 * s * np.polyval(1 / _ODD, s * s)


def log_gamma(z: Floats) -> Floats:
    """Return log Γ(z) for z ≥ 1."""
    y, u = z + 8, z * (z + 7)
    series = np.polyval(_BERNOULLI / (_EVEN * (_EVEN - 1)), 1 / (y * y)) / y
    return (y - 0.5) * log(y) - y + _HALF_LOG_2PI + series - log(u * (u + 6) * (u + 10) * (u + 12))


def digamma(z: Floats) -> Floats:
    """Return the derivative of log Γ(z) for z ≥ 1."""
    y, u = z + 8, z * (z + 7)
    square = 1 / (y * y)
    inverses = sum(1 / (u + pair) for pair in _PAIRS)
    return log(y) - 0.5 / y - np.polyval(_BERNOULLI / _EVEN, square) * square - (2 * z + 7) * inverses


def trigamma(z: Floats) -> Floats:
    """Return the second derivative of log Γ(z) for z ≥ 1."""
    y, u, by_z = z + 8, z * (z + 7), 2 * z + 7
    square = 1 / (y * y)
    terms = sum((by_z * by_z / (u + pair) - 2) / (u + pair) for pair in _PAIRS)
    return 1 / y + 0.5 * square + np.polyval(_BERNOULLI, square) * square / y + terms
