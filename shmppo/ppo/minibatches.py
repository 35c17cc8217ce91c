"""Divide a rollout into sequences, minibatches, and shards.

Each trajectory is split at episode starts, and then into sequences of at most L steps, so the start of an episode is
always the first step of a sequence. A minibatch is a set of sequences, and a shard is a part of a minibatch.

`build_minibatches` divides all epochs of an update in advance, so a command to compute gradients needs only the indices
of the epoch and the minibatch.
"""

from __future__ import annotations

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ShmppoError
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import Minibatches, Rollout
from shmppo.utils.rng import MINIBATCHES, keyed_generator

_EPSILON = 1e-8
_MOMENTS = 3  # steps, sum, and sum of squares of a minibatch's advantages


def build_minibatches(
    config: TrainConfig,
    rollout: Rollout,
    out: Minibatches,
    *,
    iteration: int,
    advantages: np.ndarray,
    process_group: ProcessGroup,
) -> None:
    """Divide a rollout into K epochs of M minibatches of G shards.

    Args:
        out: the arrays to write. Step counts and statistics of advantages are over all ranks.
        advantages: float32 [T, N].
    """
    _write_step_targets(rollout, out, advantages)
    sequences = cut_sequences(rollout.first, config.sequence_steps, rollout.valid_steps)
    count = len(sequences)
    out.sequences[:count] = sequences
    sums = AdvantageSums(advantages, rollout.valid_steps, sequences, process_group)
    moments = np.empty((config.epochs, config.minibatches, _MOMENTS))
    for epoch in range(config.epochs):
        generator = keyed_generator(config.seed, MINIBATCHES, index=config.rank, epoch=epoch, iteration=iteration)
        order, cuts = shuffle_sequences(sequences[:, 2], config.minibatches, generator)
        moments[epoch] = sums.moments(order, cuts)
        out.bounds[epoch] = assign_shards(order, cuts, sequences[:, 2], config.shards)
        out.order[epoch, :count] = order
    moments = process_group.gather(moments).sum(axis=0)
    out.steps[:] = moments[..., 0]
    out.advantage_scale[:] = sums.scales(moments, config.advantage_norm)


def _write_step_targets(rollout: Rollout, out: Minibatches, advantages: np.ndarray) -> None:
    """Write advantage, value target, old value, and old log_prob of each step."""
    targets = out.step_targets.reshape(*advantages.shape, -1)
    targets[..., 0] = advantages
    targets[..., 1] = advantages + rollout.value
    targets[..., 2] = rollout.value
    targets[..., 3:] = rollout.log_prob


def cut_sequences(first: np.ndarray, sequence_steps: int, valid_steps: np.ndarray | None = None) -> np.ndarray:
    """Split a rollout into sequences.

    Args:
        first: bool [T, N], whether obs[t] begins an episode.
        sequence_steps: maximum length of a sequence.
        valid_steps: [N], number of valid steps of each environment. Sequences contain only valid steps. None: all T.

    Returns:
        int32 [sequences, 4], in the order of (environment, first step): the first step t, the index n of the
        environment, the number of steps, and the slot c of the stored initial state. The slot is −1 if the sequence
        begins an episode, because its initial state is zero.
    """
    T, N = first.shape
    valid_steps = np.full(N, T) if valid_steps is None else valid_steps
    steps = np.arange(T)
    begin = np.maximum.accumulate(np.where(first.T, steps, 0), axis=1)  # last start of an episode up to t, or 0
    starts = ((steps - begin) % sequence_steps == 0) & (steps < valid_steps[:, None])  # [N, T]
    env, start = np.nonzero(starts)
    position = env * T + start  # index of the first step in a flattened [N, T] array
    length = np.minimum(np.diff(position, append=N * T), valid_steps[env] - start)
    begins = first.T[env, start]
    stored = np.cumsum(starts & ~first.T, axis=1)[env, start] - 1
    slot = np.where(begins, -1, stored)
    return np.stack([start, env, length, slot], axis=1).astype(np.int32)


def shuffle_sequences(
    steps: np.ndarray, minibatches: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle the sequences of one epoch, and divide them into minibatches of nearly equal step counts.

    Args:
        steps: [sequences], number of steps of each sequence.
        minibatches: M.

    Returns:
        (order int [sequences], cuts int [minibatches + 1]): minibatch m is order[cuts[m]:cuts[m + 1]].

    Raises:
        ShmppoError: if there are fewer sequences than minibatches.
    """
    if len(steps) < minibatches:  # the checks of a configuration exclude this, but columns may be idle more often
        raise ShmppoError(
            f"a rollout has {len(steps)} sequences, but --minibatches is {minibatches}; lower it, or raise "
            "--rollout-steps or --num-envs"
        )
    order = generator.permutation(len(steps))
    return order, equal_cuts(steps[order], minibatches)


def assign_shards(order: np.ndarray, cuts: np.ndarray, steps: np.ndarray, shards: int) -> np.ndarray:
    """Divide the minibatches of one epoch into shards.

    Each minibatch is sorted by length, so the longest sequence of a shard is the first, and the others have similar
    lengths.

    Args:
        order: [sequences], from `shuffle_sequences`. The part of each minibatch is sorted in place.
        cuts: [M + 1], from `shuffle_sequences`.
        steps: [sequences], number of steps of each sequence.
        shards: G.

    Returns:
        int [M, G + 1]: shard g of minibatch m is order[bounds[m, g]:bounds[m, g + 1]].
    """
    bounds = np.empty((len(cuts) - 1, shards + 1), np.int64)
    for m in range(len(bounds)):
        members = order[cuts[m] : cuts[m + 1]]
        members[:] = members[np.argsort(-steps[members], kind="stable")]
        filled = min(shards, len(members))  # with fewer sequences than shards, the last shards are empty
        bounds[m, : filled + 1] = cuts[m] + equal_cuts(steps[members], filled)
        bounds[m, filled:] = cuts[m + 1]
    return bounds


def equal_cuts(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Divide a list of sequences into `parts` nonempty runs (contiguous parts) of nearly equal step counts.

    Args:
        lengths: [sequences], number of steps of each sequence. There are at least `parts` sequences.
        parts: number of runs.

    Returns:
        int [parts + 1]: run p consists of sequences cuts[p]:cuts[p + 1].
    """
    count = len(lengths)
    ends = np.cumsum(lengths)
    targets = ends[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - lengths / 2, targets)  # the middle of a sequence decides to which run it belongs
    index = np.arange(1, parts)
    # No run may be empty: each cut is greater than the one before, and leaves a sequence for each later run.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - index) + index
    cuts = np.minimum(cuts, count - parts + index)
    return np.concatenate([[0], cuts, [count]]).astype(np.int64)


class AdvantageSums:
    """Sums of advantages over each sequence. From them follow the mean and standard deviation of every minibatch.

    The mean over all ranks is subtracted first, so a large mean costs no precision in the sums of squares.
    """

    def __init__(
        self, advantages: np.ndarray, valid_steps: np.ndarray, sequences: np.ndarray, process_group: ProcessGroup
    ) -> None:
        """Compute the sums. All ranks must call this.

        Args:
            advantages: float32 [T, N].
            valid_steps: [N], number of valid steps of each environment.
            sequences: [sequences, 4], from `cut_sequences`.
        """
        by_env = np.ascontiguousarray(advantages.T, dtype=np.float64)
        valid = np.arange(len(advantages)) < valid_steps[:, None]  # [N, T]
        starts = sequences[:, 1].astype(np.int64) * len(advantages) + sequences[:, 0]
        count = int(valid_steps.sum())
        self._mean = _mean_over_ranks(process_group, by_env[valid], count)
        centered = np.where(valid, by_env - self._mean, 0.0).reshape(-1)
        squares = np.square(centered)
        self._std = np.sqrt(_mean_over_ranks(process_group, squares, count))
        self._lengths = sequences[:, 2].astype(np.int64)
        self._sum = np.add.reduceat(centered, starts)
        self._squares = np.add.reduceat(squares, starts)

    def moments(self, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Return the number of steps, the sum, and the sum of squares of the advantages of each minibatch on this rank.

        Args:
            order, cuts: from `shuffle_sequences`.

        Returns:
            float64 [M, 3].
        """
        columns = (self._lengths, self._sum, self._squares)
        return np.stack([np.add.reduceat(column[order], cuts[:-1]) for column in columns], axis=-1)

    def scales(self, moments: np.ndarray, over: str) -> np.ndarray:
        """Return the numbers that normalize the advantages of each minibatch.

        Args:
            moments: [K, M, 3], from `moments`, summed over all ranks.
            over: --advantage-norm: "minibatch", "global", or "none".

        Returns:
            float64 [K, M, 2]: mean and 1 / (standard deviation + 1e-8).
        """
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


def _mean_over_ranks(process_group: ProcessGroup, numbers: np.ndarray, count: int) -> float:
    """Return the mean of the numbers of all ranks. count: how many of them count; the others are zero."""
    sums, counts = process_group.gather(np.array([numbers.sum(), count])).T
    return float(sums.sum() / counts.sum())
