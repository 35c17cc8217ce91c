"""A model of the speed-up over ranks: the iteration of one rank plus the all-reduces of the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

UPDATES = 16  # all-reduces in an iteration: 4 epochs of 4 minibatches


def all_reduce_seconds(ranks: np.ndarray | int, size: float, message: float, per_byte: float) -> Any:
    """Predict the time of an all-reduce in gloo.

    Its algorithm passes 2 (R − 1) messages one after the other. Each holds 1/R of the bytes.

    Args:
        ranks: R, one number or an array.
        size: bytes of the array that is reduced.
        message: seconds per message, whatever its size.
        per_byte: seconds per byte of a message.
    """
    return 2 * (np.asarray(ranks) - 1) * (message + per_byte * size / np.asarray(ranks))


def fit(ranks: np.ndarray, sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Fit `all_reduce_seconds` to measured times by least squares over the relative errors.

    Args:
        ranks: [n].
        sizes: [n] bytes.
        seconds: [n] measured.

    Returns:
        (seconds per message, seconds per byte).
    """
    messages = 2 * (ranks - 1)
    equations = np.stack([messages, messages * sizes / ranks], axis=1)
    weights = 1 / seconds  # relative errors, so that small arrays count as much as large ones
    message, per_byte = np.linalg.lstsq(equations * weights[:, None], np.ones(len(seconds)), rcond=None)[0]
    return float(message), float(per_byte)
