"""The plan of one update, written before LEARN: targets of each step, rows, minibatches, shards, statistics.

It is immutable while gradients are computed, so that per minibatch only "go" and "done" travel.
"""

from __future__ import annotations

import numpy as np

from shmppo.config import TrainConfig
from shmppo.layout import Arena, UpdateNumbers
from shmppo.sequences import cut_rows, equal_cuts, shuffled_order

_EPSILON = 1e-8


def write_plan(
    config: TrainConfig, arena: Arena, *, iteration: int, advantages: np.ndarray, numbers: UpdateNumbers
) -> None:
    """Write every field of phase PLAN.

    Args:
        advantages: [T, N] float32.
        numbers: what the loss weighs its terms with in this iteration.
    """
    values = arena.array("value")
    targets = arena.array("step_targets").reshape(*advantages.shape, -1)  # columns: layout.STEP_TARGETS
    targets[..., 0] = advantages
    targets[..., 1] = advantages + values
    targets[..., 2] = values
    targets[..., 3:] = arena.array("log_prob")
    arena.array("update_numbers")[:] = numbers

    rows = cut_rows(arena.array("first"), config.row_steps)
    count = len(rows)
    arena.array("rows")[:count] = rows
    lengths = rows[:, 2].astype(np.int64)
    sums = _RowSums(advantages, rows, lengths)
    for epoch in range(config.epochs):
        order, cuts = shuffled_order(
            rows,
            seed=config.seed,
            block=config.block,
            iteration=iteration,
            epoch=epoch,
            minibatches=config.minibatches,
        )
        arena.array("order")[epoch, :count] = order
        arena.array("minibatch_steps")[epoch] = np.add.reduceat(lengths[order], cuts[:-1])
        arena.array("advantage_scale")[epoch] = sums.scales(order, cuts, config.advantage_norm)
        bounds = arena.array("bounds")[epoch]
        for m in range(config.minibatches):
            begin, end = cuts[m], cuts[m + 1]
            bounds[m] = begin + equal_cuts(lengths[order[begin:end]], config.shards)


class _RowSums:
    """Sums of advantages over each row, so that a minibatch's mean and deviation need not touch its steps."""

    def __init__(self, advantages: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> None:
        columns = np.ascontiguousarray(advantages.T, dtype=np.float64).reshape(-1)
        starts = rows[:, 1].astype(np.int64) * len(advantages) + rows[:, 0]
        self._mean = columns.mean()
        centred = columns - self._mean  # so that the squares below lose no digits to a large mean
        self._std = np.sqrt(np.square(centred).mean())
        self._lengths = lengths
        self._sum = np.add.reduceat(centred, starts)
        self._squares = np.add.reduceat(np.square(centred), starts)

    def scales(self, order: np.ndarray, cuts: np.ndarray, over: str) -> np.ndarray:
        """Mean and 1 / (standard deviation + 1e-8) of each minibatch's advantages, [M, 2]."""
        scales = np.empty((len(cuts) - 1, 2))
        if over == "none":
            scales[:] = 0.0, 1.0
        elif over == "global":
            scales[:] = self._mean, 1 / (self._std + _EPSILON)
        else:
            steps = np.add.reduceat(self._lengths[order], cuts[:-1])
            mean = np.add.reduceat(self._sum[order], cuts[:-1]) / steps
            variance = np.add.reduceat(self._squares[order], cuts[:-1]) / steps - np.square(mean)
            scales[:, 0] = self._mean + mean
            scales[:, 1] = 1 / (np.sqrt(np.maximum(variance, 0.0)) + _EPSILON)
        return scales
