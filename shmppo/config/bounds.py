"""The bounds of numeric options."""

from __future__ import annotations

from shmppo.config.option import Bound

TOO_LARGE = 1e30
"""Products of smaller numbers with ordinary numbers stay finite in float32."""
MAX_SECONDS = 1e6
"""The functions of the system that wait count in milliseconds with 32 bits."""
MAX_UNITS, MAX_LAYERS = 2**20, 100
MAX_OPTION_BYTES = 2**16
"""Largest size of the options of `reset` (--env-schedule) as JSON text."""

AT_LEAST_1 = Bound("be at least 1", lambda v: v >= 1)
NOT_NEGATIVE = Bound("be 0 or more", lambda v: v >= 0)
SEED = Bound("lie in 0 … 2^63 - 1", lambda v: 0 <= v < 2**63)
UNITS = Bound(f"be at most {MAX_UNITS}", lambda v: v <= MAX_UNITS)
LAYERS = Bound(f"be at most {MAX_LAYERS}", lambda v: v <= MAX_LAYERS)
LOG_STD = Bound("lie in -20 … 20", lambda v: abs(v) <= 20)
FRACTION = Bound("lie in 0 … 1", lambda v: 0 <= v <= 1)
PROPER_FRACTION = Bound("lie between 0 and 1", lambda v: 0 < v < 1)
POSITIVE = Bound("be positive", lambda v: v > 0)
POSITIVE_NUMBER = Bound("be positive and below 1e30", lambda v: 0 < v < TOO_LARGE)
COEFFICIENT = Bound("be 0 or more and below 1e30", lambda v: 0 <= v < TOO_LARGE)
ABOVE_1 = Bound("be above 1 and below 1e30", lambda v: 1 < v < TOO_LARGE)
SECONDS = Bound("be positive and at most 1e6 seconds", lambda v: 0 < v <= MAX_SECONDS)
