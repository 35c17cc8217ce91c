"""Normalization: running moments of samples, and the input of a policy from them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shmppo.kernels.functions import merge_moments

CLIP = 10.0
"""Limit of normalized observations and rewards."""
_EPSILON = 1e-8
_Array = TypeVar("_Array", Tensor, np.ndarray)


class RunningMoments:
    """Count, mean, and sum of squared deviations (M2) of all samples so far, float64."""

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)

    def merge(self, counts: np.ndarray, moments: np.ndarray) -> None:
        """Add batches of samples in order.

        Args:
            counts: [n], number of samples of each batch.
            moments: [n, 2, size], mean and sum of squared deviations of each batch.
        """
        self.count = merge_moments(self.count, self.mean, self.m2, counts, moments)

    @property
    def std(self) -> np.ndarray:
        """Population standard deviation [size]; 1 before the first sample."""
        if self.count == 0:
            return np.ones_like(self.mean)
        return np.sqrt(self.m2 / self.count + _EPSILON)

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of the moments for a checkpoint."""
        return {"count": np.array(self.count), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        self.count = float(state["count"])
        self.mean = np.array(state["mean"])
        self.m2 = np.array(state["m2"])


def column_moments(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and sum of squared deviations of one environment's samples.

    Args:
        column: [T, size], the samples.

    Returns:
        (mean [size], m2 [size]), float64.
    """
    # The reduction runs over the last axis of a contiguous copy. Its shape depends only on the configuration, so the
    # order of summation does too.
    samples = np.ascontiguousarray(column.T, dtype=np.float64)  # [size, T]
    mean = samples.sum(axis=-1) / max(len(column), 1)
    return mean, np.square(samples - mean[:, None]).sum(axis=-1)


def normalize_leaf(stored: Tensor, statistics: tuple[Tensor, Tensor] | None) -> Tensor:
    """Convert a stored leaf [..., size] to the policy's input: (stored − mean) · scale, clipped to ± CLIP.

    Acting and learning must compute the same bits, so that the probability ratio is 1 at the start of an update.

    Args:
        stored: [..., size].
        statistics: (mean [size], scale [size] = 1 / standard deviation). None: the leaf is not normalized.
    """
    if statistics is None:
        return stored
    mean, scale = statistics
    return torch.sub(stored, mean).mul_(scale).clamp_(-CLIP, CLIP)


def leaf_statistics(
    slices: list[slice | None], mean: _Array, scale: _Array, enabled: bool
) -> list[tuple[_Array, _Array] | None]:
    """Split the statistics of all normalized numbers by leaf.

    Args:
        slices: slice of each leaf within the D numbers, None if it is not normalized
            (`ObservationSpec.normalized_slices`).
        mean: [D].
        scale: [D], 1 / standard deviation.
        enabled: whether observations are normalized at all.

    Returns:
        For each leaf, views into mean and scale, or None if the leaf is not normalized.
    """
    return [(mean[part], scale[part]) if part is not None and enabled else None for part in slices]
