"""Sequences, minibatches, and shards: how one rollout becomes the data of an update.

Each trajectory is split at episode starts, and then into sequences of at most L steps. So no sequence contains the
start of an episode except at its own beginning. A minibatch is a set of sequences, and a shard is a part of a
minibatch.

`build_minibatches` runs before the gradients. Nothing changes while they are computed, so that only a command and an
acknowledgement travel per minibatch.
"""

from __future__ import annotations

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from shmppo.parallel.shared_buffers import LossCoefficients, Minibatches, Rollout
from shmppo.utils.rng import minibatch_generator

STEP_MULTIPLE = 4
"""Padded sequences have a multiple of so many steps, because each new shape costs the fused LSTM 1 to 2 ms once."""
_EPSILON = 1e-8
_MOMENTS = 3  # steps, sum, and sum of squares of a minibatch's advantages


def build_minibatches(
    config: TrainConfig,
    rollout: Rollout,
    out: Minibatches,
    *,
    iteration: int,
    advantages: np.ndarray,
    coefficients: LossCoefficients,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> Minibatches:
    """Divide a rollout into K epochs of M minibatches of G shards.

    Args:
        out: where the result is written.
        advantages: [T, N] float32.
        coefficients: of the loss in this iteration.

    Returns:
        `out`. Steps and advantage statistics of a minibatch are those of all ranks together.
    """
    _write_step_targets(rollout, out, advantages)
    out.coefficients[:] = coefficients
    sequences = cut_sequences(rollout.first, config.sequence_steps, rollout.valid_steps)
    count = len(sequences)
    out.sequences[:count] = sequences
    lengths = sequences[:, 2].astype(np.int64)
    steps = lengths + warm_up_steps(sequences, config.burn_in)
    sums = AdvantageSums(advantages, rollout.valid_steps, sequences, process_group)
    moments = np.empty((config.epochs, config.minibatches, _MOMENTS))
    for epoch in range(config.epochs):
        order, cuts = shuffle_sequences(
            sequences,
            seed=config.seed,
            block=config.block,
            first_block=config.first_env // config.block,
            iteration=iteration,
            epoch=epoch,
            minibatches=config.minibatches,
        )
        moments[epoch] = sums.moments(order, cuts)
        out.bounds[epoch] = assign_shards(order, cuts, steps, config.shards)
        out.order[epoch, :count] = order
    moments = process_group.gather(moments).sum(axis=0)
    out.steps[:] = moments[..., 0]
    out.advantage_scale[:] = sums.scales(moments, config.advantage_norm)
    return out


def _write_step_targets(rollout: Rollout, out: Minibatches, advantages: np.ndarray) -> None:
    targets = out.step_targets.reshape(*advantages.shape, -1)
    targets[..., 0] = advantages
    targets[..., 1] = advantages + rollout.value
    targets[..., 2] = rollout.value
    targets[..., 3:] = rollout.log_prob


def sequence_starts(first: np.ndarray, sequence_steps: int) -> np.ndarray:
    """Where sequences begin, bool [T, N], from `first` bool [T, N] and the maximum length."""
    steps = np.arange(len(first))[:, None]
    begin = np.maximum.accumulate(np.where(first, steps, 0), axis=0)  # start of the trajectory part that t belongs to
    starts: np.ndarray = (steps - begin) % sequence_steps == 0
    return starts


def cut_sequences(first: np.ndarray, sequence_steps: int, valid_steps: np.ndarray | None = None) -> np.ndarray:
    """Split a rollout into sequences.

    Args:
        first: [T, N] bool, whether obs[t] begins an episode.
        sequence_steps: maximum length of a sequence.
        valid_steps: [N], valid steps of each environment; sequences contain no others. None: all T.

    Returns:
        int32 [sequences, 4] with the columns of `shared_buffers.Sequence`, by environment and then by time.
    """
    T, N = first.shape
    valid_steps = np.full(N, T) if valid_steps is None else valid_steps
    starts = sequence_starts(first, sequence_steps).T & (np.arange(T) < valid_steps[:, None])  # [N, T]
    env, start = np.nonzero(starts)
    position = env * T + start  # sequences lie one after the other in the valid part of the [N, T] plane
    length = np.minimum(np.diff(position, append=N * T), valid_steps[env] - start)
    begins = first.T[env, start]
    stored = np.cumsum(starts & ~first.T, axis=1)[env, start] - 1
    slot = np.where(begins, -1, stored)
    return np.stack([start, env, length, slot], axis=1).astype(np.int32)


def shuffle_sequences(
    sequences: np.ndarray, *, seed: int, block: int, iteration: int, epoch: int, minibatches: int, first_block: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The order of the sequences in one epoch, and where its minibatches begin.

    Environments form fixed blocks of `block` environments. The sequences of a block are shuffled by a generator keyed
    by (seed, block, iteration, epoch) and divided into parts of nearly equal step counts. Minibatch m is the union of
    the m-th parts of all blocks. So minibatches do not depend on how many blocks one rank has.

    Args:
        sequences: [sequences, 4].
        first_block: number of this rank's first block among those of all ranks.

    Returns:
        (order int [sequences], cuts int [minibatches + 1]): minibatch m is order[cuts[m]:cuts[m + 1]].
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(minibatches)]
    blocks = sequences[:, 1] // block
    for b in range(int(blocks[-1]) + 1):
        members = np.flatnonzero(blocks == b)
        members = minibatch_generator(seed, first_block + b, iteration, epoch).permutation(members)
        cuts = equal_cuts(sequences[members, 2], minibatches)
        for m in range(minibatches):
            parts[m].append(members[cuts[m] : cuts[m + 1]])
    joined = [np.concatenate(part) for part in parts]
    bounds = np.cumsum([0] + [len(part) for part in joined])
    return np.concatenate(joined), bounds


def assign_shards(order: np.ndarray, cuts: np.ndarray, steps: np.ndarray, shards: int) -> np.ndarray:
    """Divide the minibatches of one epoch into shards.

    With several shards, sequences of similar length come together, so that little padding is needed.

    Args:
        order: [sequences], from `shuffle_sequences`; each minibatch's part is sorted in place.
        cuts: [M + 1].
        steps: [sequences], steps of each sequence including burn-in.

    Returns:
        int [M, G + 1]: shard g of minibatch m is order[bounds[m, g]:bounds[m, g + 1]].
    """
    bounds = np.empty((len(cuts) - 1, shards + 1), np.int64)
    for m in range(len(bounds)):
        members = order[cuts[m] : cuts[m + 1]]
        if shards > 1:
            members[:] = members[np.argsort(-steps[members], kind="stable")]
        bounds[m] = cuts[m] + shard_cuts(steps[members], shards)
    return bounds


def equal_cuts(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Divide a list of sequences into `parts` nonempty runs of nearly equal step counts.

    Args:
        lengths: [sequences] steps of each sequence, in order; at least `parts` of them.

    Returns:
        int [parts + 1]: run p is sequences cuts[p]:cuts[p + 1].
    """
    count = len(lengths)
    ends = np.cumsum(lengths)
    targets = ends[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - lengths / 2, targets)  # a sequence belongs where its middle lies
    index = np.arange(1, parts)
    # No run is empty: each cut lies at least one sequence after the one before, and leaves one for each later run.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - index) + index
    cuts = np.minimum(cuts, count - parts + index)
    return np.concatenate([[0], cuts, [count]]).astype(np.int64)


def shard_cuts(steps: np.ndarray, shards: int) -> np.ndarray:
    """Divide a minibatch into shards of nearly equal size after padding to each shard's longest sequence.

    Args:
        steps: [sequences] of each sequence, the longest first.

    Returns:
        int [shards + 1], as in `equal_cuts`. With fewer sequences than shards, the last shards are empty.
    """
    filled = min(shards, len(steps))
    cuts = equal_cuts(steps, filled)
    if filled > 1 and steps[0] > steps[-1]:
        for _ in range(2):  # the padded size of a sequence depends on its shard; a second pass changes little
            cuts = equal_cuts(np.repeat(steps[cuts[:-1]], np.diff(cuts)), filled)
    return np.concatenate([cuts, np.full(shards - filled, len(steps))])


def warm_up_steps(sequences: np.ndarray, burn_in: int) -> np.ndarray:
    """Burn-in steps before each of the sequences [R, 4], [R]: none where an episode or the rollout begins.

    The stored state of a sequence is the one before these steps. A sequence that continues an episode follows a full
    one, which has more than `burn_in` steps.
    """
    return np.where((sequences[:, 3] >= 0) & (sequences[:, 0] > 0), burn_in, 0)


def step_indices(
    sequences: np.ndarray, *, sequence_steps: int, num_envs: int, burn_in: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the steps of padded sequences in flattened arrays [T·N, …], time first.

    Args:
        sequences: [R, 4]; sequence_steps: maximum length of a sequence.

    Returns:
        (indices int64 [L, R], valid bool [L, R]). L is the length of the longest sequence, rounded up to a
        STEP_MULTIPLE. Burn-in steps come first and are not valid. Padding comes last, repeats the last step, and is not
        valid.
    """
    length, warm = sequences[:, 2].astype(np.int64), warm_up_steps(sequences, burn_in)
    ends = warm + length
    longest = int(ends.max())
    offset = np.arange(min(longest + -longest % STEP_MULTIPLE, sequence_steps + burn_in))[:, None]
    step = sequences[:, 0].astype(np.int64) - warm + np.minimum(offset, ends - 1)
    return step * num_envs + sequences[:, 1], (offset >= warm) & (offset < ends)


class AdvantageSums:
    """Sums of advantages over each sequence, from which the mean and deviation of every minibatch follow.

    Advantages are taken relative to their mean over all ranks. So the squares lose no digits to a large mean, and the
    sums of the ranks can be added.
    """

    def __init__(
        self, advantages: np.ndarray, valid_steps: np.ndarray, sequences: np.ndarray, process_group: ProcessGroup
    ) -> None:
        """advantages: [T, N], of which the first valid_steps[n] of environment n count."""
        by_env = np.ascontiguousarray(advantages.T, dtype=np.float64)
        valid = np.arange(len(advantages)) < valid_steps[:, None]  # [N, T]
        starts = sequences[:, 1].astype(np.int64) * len(advantages) + sequences[:, 0]
        self._mean = _mean_over_ranks(process_group, by_env[valid])
        centered = np.where(valid, by_env - self._mean, 0.0).reshape(-1)
        self._std = np.sqrt(_mean_over_ranks(process_group, np.square(centered), int(valid_steps.sum())))
        self._lengths = sequences[:, 2].astype(np.int64)
        self._sum = np.add.reduceat(centered, starts)
        self._squares = np.add.reduceat(np.square(centered), starts)

    def moments(self, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Steps, sum, and sum of squares of each minibatch's advantages on this rank, [M, 3]."""
        columns = (self._lengths, self._sum, self._squares)
        return np.stack([np.add.reduceat(column[order], cuts[:-1]) for column in columns], axis=-1)

    def scales(self, moments: np.ndarray, over: str) -> np.ndarray:
        """Mean and 1 / (standard deviation + 1e-8) of advantages, [K, M, 2].

        Args:
            moments: [K, M, 3], summed over all ranks.
            over: "minibatch", "global", or "none".
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


def _mean_over_ranks(process_group: ProcessGroup, numbers: np.ndarray, count: int | None = None) -> float:
    """Mean over the numbers of all ranks. count: how many there are, if `numbers` also contains zeros for none."""
    count = len(numbers) if count is None else count
    sums, counts = process_group.gather(np.array([numbers.sum(), count])).T
    return float(sums.sum() / counts.sum())
