"""The plan of one update, written before LEARN: targets of each step, rows, minibatches, shards, statistics.

It is immutable while gradients are computed, so that per minibatch only "go" and "done" travel.
"""

from __future__ import annotations

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from shmppo.parallel.shared_buffers import SharedBuffers, UpdateNumbers
from shmppo.utils.rng import minibatch_generator

SEQUENCE_FIELDS = ("start", "env", "length", "slot")
"""Columns of a row table: first step t, environment n, steps, and the slot of its stored initial state
(−1 where the row begins an episode, so that its state is zero)."""
STEP_MULTIPLE = 4  # padded rows have such a number of steps: each new shape costs the fused LSTM 1–2 ms once


def sequence_starts(first: np.ndarray, sequence_steps: int) -> np.ndarray:
    """Where rows begin, bool [T, N], from `first` bool [T, N]."""
    steps = np.arange(len(first))[:, None]
    begin = np.maximum.accumulate(np.where(first, steps, 0), axis=0)  # start of the stretch that t belongs to
    return (steps - begin) % sequence_steps == 0


def cut_sequences(first: np.ndarray, sequence_steps: int, taken: np.ndarray | None = None) -> np.ndarray:
    """The row table of a rollout, int32 [rows, 4] with SEQUENCE_FIELDS, by environment, then time.

    Args:
        first: [T, N] bool, obs[t] begins an episode.
        sequence_steps: longest row, in steps.
        taken: [N], steps of each column that exist, no row has any other; None: all T.
    """
    T, N = first.shape
    taken = np.full(N, T) if taken is None else taken
    starts = sequence_starts(first, sequence_steps).T & (np.arange(T) < taken[:, None])  # [N, T]
    env, start = np.nonzero(starts)
    position = env * T + start  # rows tile the existing part of the [N, T] plane one after the other
    length = np.minimum(np.diff(position, append=N * T), taken[env] - start)
    begins = first.T[env, start]
    stored = np.cumsum(starts & ~first.T, axis=1)[env, start] - 1
    slot = np.where(begins, -1, stored)
    return np.stack([start, env, length, slot], axis=1).astype(np.int32)


def shuffled_order(
    rows: np.ndarray, *, seed: int, block: int, iteration: int, epoch: int, minibatches: int, first_block: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The rows in one epoch's order, and where its minibatches begin.

    Environments form fixed blocks of `block` columns. Each block's rows are shuffled by a generator keyed by
    (seed, block, iteration, epoch) and cut into pieces of near-equal step counts; minibatch m is the union
    over blocks of their m-th pieces. So the minibatches do not depend on how many blocks one learner holds.

    Args:
        first_block: number of this rank's first block among those of all ranks.

    Returns:
        (order int [rows], bounds int [minibatches + 1]): minibatch m is order[bounds[m]:bounds[m + 1]].
    """
    pieces: list[list[np.ndarray]] = [[] for _ in range(minibatches)]
    blocks = rows[:, 1] // block
    for b in range(int(blocks[-1]) + 1):
        members = np.flatnonzero(blocks == b)
        members = minibatch_generator(seed, first_block + b, iteration, epoch).permutation(members)
        cuts = equal_cuts(rows[members, 2], minibatches)
        for m in range(minibatches):
            pieces[m].append(members[cuts[m] : cuts[m + 1]])
    joined = [np.concatenate(piece) for piece in pieces]
    bounds = np.cumsum([0] + [len(piece) for piece in joined])
    return np.concatenate(joined), bounds


def equal_cuts(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Cut a list of rows into `parts` runs of near-equal step counts, none of them empty.

    Args:
        lengths: [rows] steps of each row, in order; rows ≥ parts.

    Returns:
        int [parts + 1], run p is rows cuts[p]:cuts[p + 1].
    """
    rows = len(lengths)
    ends = np.cumsum(lengths)
    targets = ends[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - lengths / 2, targets)  # a row goes where its middle falls
    index = np.arange(1, parts)
    # Not empty: cut p lies at least one row behind cut p − 1, and leaves a row for each later part.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - index) + index
    cuts = np.minimum(cuts, rows - parts + index)
    return np.concatenate([[0], cuts, [rows]]).astype(np.int64)


def shard_cuts(steps: np.ndarray, shards: int) -> np.ndarray:
    """Cut a minibatch's rows into shards of near-equal size once padded to each shard's longest row.

    Args:
        steps: [rows] of each row, the longest first.

    Returns:
        int [shards + 1], as of `equal_cuts`; where there are fewer rows than shards, the last shards have none.
    """
    filled = min(shards, len(steps))
    cuts = equal_cuts(steps, filled)
    if filled > 1 and steps[0] > steps[-1]:
        for _ in range(2):  # what a row takes is known once its shard is; the second time changes little
            cuts = equal_cuts(np.repeat(steps[cuts[:-1]], np.diff(cuts)), filled)
    return np.concatenate([cuts, np.full(shards - filled, len(steps))])


def warm_up_steps(rows: np.ndarray, burn_in: int) -> np.ndarray:
    """Steps before each of the rows [R, 4] that warm its state up, [R]: none where an episode or the rollout begins.

    A row's stored state is the one before these steps. Those that go on from a row of the same episode have a full
    one, of more than `burn_in` steps, before them.
    """
    return np.where((rows[:, 3] >= 0) & (rows[:, 0] > 0), burn_in, 0)


def step_indices(
    rows: np.ndarray, *, sequence_steps: int, num_envs: int, burn_in: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices into [T·N, …] of the steps of padded rows, time first.

    Args:
        rows: [R, 4] row table entries; sequence_steps: the most steps that any row has.

    Returns:
        (indices int64 [L, R], real bool [L, R]), L being the longest row's steps, up to a STEP_MULTIPLE; a row's steps
        follow those that warm its state up, which are not real, nor is the padding behind it, which repeats its last
        step.
    """
    length, warm = rows[:, 2].astype(np.int64), warm_up_steps(rows, burn_in)
    ends = warm + length
    longest = int(ends.max())
    offset = np.arange(min(longest + -longest % STEP_MULTIPLE, sequence_steps + burn_in))[:, None]
    step = rows[:, 0].astype(np.int64) - warm + np.minimum(offset, ends - 1)
    return step * num_envs + rows[:, 1], (offset >= warm) & (offset < ends)


_EPSILON = 1e-8
_MOMENTS = ("steps", "sum", "squares")


def build_minibatches(
    config: TrainConfig,
    arena: SharedBuffers,
    *,
    iteration: int,
    advantages: np.ndarray,
    numbers: UpdateNumbers,
    ranks: ProcessGroup = SINGLE_PROCESS,
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
    rows = cut_sequences(arena.array("first"), config.sequence_steps, taken)
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
        self, advantages: np.ndarray, taken: np.ndarray, rows: np.ndarray, lengths: np.ndarray, ranks: ProcessGroup
    ) -> None:
        """advantages: [T, N], of which the first taken[n] of column n exist."""
        columns = np.ascontiguousarray(advantages.T, dtype=np.float64)
        exist = np.arange(len(advantages)) < taken[:, None]  # [N, T]
        starts = rows[:, 1].astype(np.int64) * len(advantages) + rows[:, 0]
        self._mean = _mean_over(ranks, columns[exist])
        centered = np.where(exist, columns - self._mean, 0.0).reshape(-1)
        self._std = np.sqrt(_mean_over(ranks, np.square(centered), int(taken.sum())))
        self._lengths = lengths
        self._sum = np.add.reduceat(centered, starts)
        self._squares = np.add.reduceat(np.square(centered), starts)

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


def _mean_over(ranks: ProcessGroup, numbers: np.ndarray, count: int | None = None) -> float:
    """Mean over the numbers of all ranks; count: how many there are, where `numbers` also holds zeros for none."""
    count = len(numbers) if count is None else count
    sums, counts = ranks.gather(np.array([numbers.sum(), count])).T
    return float(sums.sum() / counts.sum())
