"""Running moments with an exact merge, and the frozen scale that a phase reads.

Moments are kept per environment and merged in environment order by one process, so that neither the
number of workers nor the order in which they finish can change a bit.
"""

from __future__ import annotations

import numpy as np
import torch

CLIP = 10.0
_EPSILON = 1e-8


def normalize_observations(
    obs: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """(obs − mean) · scale, clipped to ± 10; obs [..., D], mean and scale = 1 / standard deviation [D].

    Acting, learning and evaluation share it: the first ratio of an update is 1 only if they see the same bits.
    """
    return torch.sub(obs, mean, out=out).mul_(scale).clamp_(-CLIP, CLIP)


Statistics = tuple[torch.Tensor, torch.Tensor]
"""Mean and 1 / standard deviation of a part of the observation."""


def normalize_leaf(
    stored: torch.Tensor, statistics: Statistics | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """One leaf of the observation as the policy is shown it: normalized if there are statistics for it."""
    if statistics is not None:
        return normalize_observations(stored, *statistics, out=out)
    return stored if out is None else out.copy_(stored)


def leaf_statistics(
    parts: list[slice | None], mean: torch.Tensor, scale: torch.Tensor, enabled: bool
) -> list[Statistics | None]:
    """Statistics of each leaf: views of mean and scale [D] where `parts` says that it is normalized."""
    return [(mean[part], scale[part]) if part is not None and enabled else None for part in parts]


class RunningMoments:
    """Count, mean and sum of squared deviations over all samples seen, float64.

    Merged pairwise (Chan, Golub, LeVeque 1979: M2 = M2a + M2b + δ²·na·nb/(na+nb)).
    """

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)

    def merge(self, count: float, mean: np.ndarray, m2: np.ndarray) -> None:
        """Add `count` samples of the given mean [size] and sum of squared deviations [size]."""
        if count == 0:
            return
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.m2 = self.m2 + m2 + delta * delta * (self.count * count / total)
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """Standard deviation [size] (population); 1 before the first sample."""
        if self.count == 0:
            return np.ones_like(self.mean)
        return np.sqrt(self.m2 / self.count + _EPSILON)

    def state(self) -> dict[str, np.ndarray]:
        return {"count": np.array(self.count), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self.count = float(state["count"])
        self.mean = np.array(state["mean"])
        self.m2 = np.array(state["m2"])


def column_moments(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sum of squared deviations of one environment's samples.

    Args:
        column: [T, size], that environment's own samples.

    Returns:
        (mean [size], m2 [size]), float64. The reduction runs over the last axis of a contiguous copy,
        whose shape depends on the configuration alone.
    """
    own = np.ascontiguousarray(column.T, dtype=np.float64)  # [size, T]
    mean = own.mean(axis=-1)
    return mean, np.square(own - mean[:, None]).sum(axis=-1)
