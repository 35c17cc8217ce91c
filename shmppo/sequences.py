"""Rows and minibatches: how a rollout is cut into sequences, and which rows form which shard.

A row is a stretch of one column (one environment) that begins at t = 0, at an episode's first step, or L
steps after the row before it began; so no row crosses an episode's start, and none is longer than L.
"""

from __future__ import annotations

import numpy as np

from shmppo.streams import minibatch_order

ROW_FIELDS = ("start", "env", "length", "slot")
"""Columns of a row table: first step t, environment n, steps, and the slot of its stored initial state
(−1 where the row begins an episode, so that its state is zero)."""
STEP_MULTIPLE = 4  # padded rows have such a number of steps: each new shape costs the fused LSTM 1–2 ms once


def row_starts(first: np.ndarray, row_steps: int) -> np.ndarray:
    """Where rows begin, bool [T, N], from `first` bool [T, N]."""
    steps = np.arange(len(first))[:, None]
    begin = np.maximum.accumulate(np.where(first, steps, 0), axis=0)  # start of the stretch that t belongs to
    return (steps - begin) % row_steps == 0


def cut_rows(first: np.ndarray, row_steps: int, taken: np.ndarray | None = None) -> np.ndarray:
    """The row table of a rollout, int32 [rows, 4] with ROW_FIELDS, by environment, then time.

    Args:
        first: [T, N] bool, obs[t] begins an episode.
        row_steps: longest row, in steps.
        taken: [N], steps of each column that exist, no row has any other; None: all T.
    """
    T, N = first.shape
    taken = np.full(N, T) if taken is None else taken
    starts = row_starts(first, row_steps).T & (np.arange(T) < taken[:, None])  # [N, T]
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
        members = minibatch_order(seed, first_block + b, iteration, epoch).permutation(members)
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


def step_indices(rows: np.ndarray, *, row_steps: int, num_envs: int, burn_in: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices into [T·N, …] of the steps of padded rows, time first.

    Args:
        rows: [R, 4] row table entries; row_steps: the most steps that any row has.

    Returns:
        (indices int64 [L, R], real bool [L, R]), L being the longest row's steps, up to a STEP_MULTIPLE; a row's steps
        follow those that warm its state up, which are not real, nor is the padding behind it, which repeats its last
        step.
    """
    length, warm = rows[:, 2].astype(np.int64), warm_up_steps(rows, burn_in)
    ends = warm + length
    longest = int(ends.max())
    offset = np.arange(min(longest + -longest % STEP_MULTIPLE, row_steps + burn_in))[:, None]
    step = rows[:, 0].astype(np.int64) - warm + np.minimum(offset, ends - 1)
    return step * num_envs + rows[:, 1], (offset >= warm) & (offset < ends)
