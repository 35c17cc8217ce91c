"""The plan of one update, written before LEARN: targets of each step, rows, minibatches, shards, statistics.

It is immutable while gradients are computed, so that per minibatch only "go" and "done" travel.
"""

from __future__ import annotations

import numpy as np

from shmppo.config import TrainConfig
from shmppo.layout import Arena, UpdateNumbers
from shmppo.ranks import ALONE, Ranks
from shmppo.sequences import cut_rows, shard_cuts, shuffled_order, warm_up_steps

_EPSILON = 1e-8
_MOMENTS = ("steps", "sum", "squares")


def write_plan(
    config: TrainConfig,
    arena: Arena,
    *,
    iteration: int,
    advantages: np.ndarray,
    numbers: UpdateNumbers,
    ranks: Ranks = ALONE,
) -> None:
    """Write every field of phase PLAN. Step counts and advantage statistics are those of a minibatch's parts together.

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

    taken = arena.array("taken")
    rows = cut_rows(arena.array("first"), config.row_steps, taken)
    count = len(rows)
    arena.array("rows")[:count] = rows
    lengths = rows[:, 2].astype(np.int64)
    steps = lengths + warm_up_steps(rows, config.burn_in)
    sums = _RowSums(advantages, taken, rows, lengths, ranks)
    moments = np.empty((config.epochs, config.minibatches, len(_MOMENTS)))
    for epoch in range(config.epochs):
        order, cuts = shuffled_order(
            rows,
            seed=config.seed,
            block=config.block,
            first_block=config.first_env // config.block,
            iteration=iteration,
            epoch=epoch,
            minibatches=config.minibatches,
        )
        moments[epoch] = sums.moments(order, cuts)
        bounds = arena.array("bounds")[epoch]
        for m in range(config.minibatches):
            members = order[cuts[m] : cuts[m + 1]]
            if config.shards > 1:  # rows of about one length together, so that little is padding
                members[:] = members[np.argsort(-steps[members], kind="stable")]
            bounds[m] = cuts[m] + shard_cuts(steps[members], config.shards)
        arena.array("order")[epoch, :count] = order
    moments = ranks.gather(moments).sum(axis=0)
    arena.array("minibatch_steps")[:] = moments[..., 0]
    arena.array("advantage_scale")[:] = sums.scales(moments, config.advantage_norm)


class _RowSums:
    """Sums of advantages over each row, so that a minibatch's mean and deviation need not touch its steps.

    Advantages are taken relative to their mean over all ranks: then the squares lose no digits to a large mean, and the
    sums of the ranks simply add.
    """

    def __init__(
        self, advantages: np.ndarray, taken: np.ndarray, rows: np.ndarray, lengths: np.ndarray, ranks: Ranks
    ) -> None:
        """advantages: [T, N], of which the first taken[n] of column n exist."""
        columns = np.ascontiguousarray(advantages.T, dtype=np.float64)
        exist = np.arange(len(advantages)) < taken[:, None]  # [N, T]
        starts = rows[:, 1].astype(np.int64) * len(advantages) + rows[:, 0]
        self._mean = _mean_over(ranks, columns[exist])
        centred = np.where(exist, columns - self._mean, 0.0).reshape(-1)
        self._std = np.sqrt(_mean_over(ranks, np.square(centred), int(taken.sum())))
        self._lengths = lengths
        self._sum = np.add.reduceat(centred, starts)
        self._squares = np.add.reduceat(np.square(centred), starts)

    def moments(self, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """_MOMENTS of each minibatch's advantages on this rank, [M, 3]."""
        columns = (self._lengths, self._sum, self._squares)
        return np.stack([np.add.reduceat(column[order], cuts[:-1]) for column in columns], axis=-1)

    def scales(self, moments: np.ndarray, over: str) -> np.ndarray:
        """Mean and 1 / (standard deviation + 1e-8) of advantages, [K, M, 2], by moments [K, M, 3] over all ranks."""
        scales = np.empty((*moments.shape[:-1], 2))
        if over == "none":
            scales[:] = 0.0, 1.0
        elif over == "global":
            scales[:] = self._mean, 1 / (self._std + _EPSILON)
        else:
            steps, total, squares = np.moveaxis(moments, -1, 0)
            mean = total / steps
            variance = squares / steps - np.square(mean)
            scales[..., 0] = self._mean + mean
            scales[..., 1] = 1 / (np.sqrt(np.maximum(variance, 0.0)) + _EPSILON)
        return scales


def _mean_over(ranks: Ranks, numbers: np.ndarray, count: int | None = None) -> float:
    """Mean over the numbers of all ranks; count: how many there are, where `numbers` also holds zeros for none."""
    count = len(numbers) if count is None else count
    sums, counts = ranks.gather(np.array([numbers.sum(), count])).T
    return float(sums.sum() / counts.sum())
