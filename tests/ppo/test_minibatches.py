"""Rows, minibatches and shards: that they tile the rollout, and are what the docstrings say."""

from __future__ import annotations

import numpy as np
import pytest

from shmppo.ppo.minibatches import STEP_MULTIPLE, cut_sequences, equal_cuts, shard_cuts, shuffled_order, step_indices


def first_steps(T: int, *columns: list[int]) -> np.ndarray:
    first = np.zeros((T, len(columns)), bool)
    for n, starts in enumerate(columns):
        first[starts, n] = True
    return first


def test_rows_by_hand() -> None:
    # L = 4. Column 0: goes on from before, an episode begins at 6. Column 1: episodes begin at 0 and 9.
    rows = cut_sequences(first_steps(10, [6], [0, 9]), 4)
    assert rows.tolist() == [
        # start, env, length, slot
        [0, 0, 4, 0],
        [4, 0, 2, 1],
        [6, 0, 4, -1],
        [0, 1, 4, -1],
        [4, 1, 4, 0],
        [8, 1, 1, 1],
        [9, 1, 1, -1],
    ]


def test_without_a_core_every_step_is_a_row() -> None:
    rows = cut_sequences(first_steps(3, [1], []), 1)
    assert rows[:, 0].tolist() == [0, 1, 2] * 2
    assert set(rows[:, 2]) == {1}


@pytest.mark.parametrize("sequence_steps", [1, 3, 8, 50])
def test_rows_tile_the_rollout_and_never_cross_an_episodes_start(sequence_steps: int) -> None:
    rng = np.random.default_rng(0)
    first = rng.random((37, 5)) < 0.15
    rows = cut_sequences(first, sequence_steps)
    indices, real = step_indices(rows, sequence_steps=sequence_steps, num_envs=5)
    assert sorted(indices[real].tolist()) == list(range(37 * 5))
    for start, env, length, slot in rows.tolist():
        assert 1 <= length <= sequence_steps
        assert not first[start + 1 : start + length, env].any()
        assert (slot == -1) == first[start, env]
    for env in range(5):
        slots = [slot for _, e, _, slot in rows.tolist() if e == env and slot >= 0]
        assert slots == list(range(len(slots)))
        assert len(slots) <= -(-37 // sequence_steps)


def test_padding_repeats_the_last_step_and_is_not_real() -> None:
    rows = np.array([[2, 1, 2, -1], [0, 0, 4, 0]], np.int32)
    indices, real = step_indices(rows, sequence_steps=4, num_envs=3)
    assert indices.T.tolist() == [[7, 10, 10, 10], [0, 3, 6, 9]]
    assert real.T.tolist() == [[True, True, False, False], [True] * 4]


@pytest.mark.parametrize(("longest", "expected"), [(1, 4), (4, 4), (5, 8), (9, 11), (11, 11)])
def test_padding_ends_shortly_after_the_longest_row(longest: int, expected: int) -> None:
    assert STEP_MULTIPLE == 4
    rows = np.array([[0, 0, 1, -1], [1, 1, longest, 0]])
    assert step_indices(rows, sequence_steps=11, num_envs=2)[0].shape == (expected, 2)
    assert step_indices(rows, sequence_steps=1, num_envs=2)[0].shape == (1, 2)


@pytest.mark.parametrize("mean_length", [10, 40, 100])
def test_shards_cost_about_the_same_with_their_padding(mean_length: int) -> None:
    first = np.random.default_rng(0).random((128, 64)) < 1 / mean_length
    steps = np.sort(cut_sequences(first, 16)[:, 2])[::-1]
    cuts = shard_cuts(steps, 32)
    padded = np.diff(cuts) * steps[cuts[:-1]]
    assert padded.max() <= 1.15 * padded.mean()
    assert padded.sum() <= 1.05 * steps.sum()
    assert len(steps) * 16 > 1.05 * steps.sum(), "nothing to gain here"


def test_equal_cuts_are_near_equal_in_steps() -> None:
    lengths = np.random.default_rng(0).integers(1, 17, size=300)
    cuts = equal_cuts(lengths, 7)
    steps = np.add.reduceat(lengths, cuts[:-1])
    assert np.abs(steps - lengths.sum() / 7).max() <= 16


@pytest.mark.parametrize("lengths", [[100, 1, 1, 1], [1, 1, 1, 100], [1, 100, 1, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_no_run_is_empty(lengths: list[int], parts: int) -> None:
    cuts = equal_cuts(np.array(lengths), parts)
    assert cuts[0] == 0
    assert cuts[-1] == len(lengths)
    assert (np.diff(cuts) >= 1).all()


def test_minibatches_cover_all_rows_and_change_from_epoch_to_epoch() -> None:
    rows = cut_sequences(np.random.default_rng(0).random((64, 6)) < 0.1, 8)
    orders = []
    for epoch in range(2):
        order, cuts = shuffled_order(rows, seed=1, block=6, iteration=0, epoch=epoch, minibatches=4)
        assert sorted(order.tolist()) == list(range(len(rows)))
        assert len(cuts) == 5
        orders.append(order.tolist())
    assert orders[0] != orders[1]


def test_a_block_fills_the_same_part_of_a_minibatch_alone_and_among_others() -> None:
    """What lets R ranks with N environments each draw the minibatches of one rank with R·N."""
    first = np.random.default_rng(0).random((40, 4)) < 0.1
    both = cut_sequences(first, 8)
    order, cuts = shuffled_order(both, seed=3, block=2, iteration=5, epoch=1, minibatches=3)
    alone = cut_sequences(first[:, :2], 8)
    order_alone, cuts_alone = shuffled_order(alone, seed=3, block=2, iteration=5, epoch=1, minibatches=3)
    for m in range(3):
        members = [r for r in order[cuts[m] : cuts[m + 1]].tolist() if r < len(alone)]
        assert members == order_alone[cuts_alone[m] : cuts_alone[m + 1]].tolist()


def test_where_there_are_fewer_rows_than_shards_the_last_have_none() -> None:
    assert shard_cuts(np.array([9, 4, 4]), 5).tolist() == [0, 1, 2, 3, 3, 3]
    assert shard_cuts(np.array([9]), 2).tolist() == [0, 1, 1]
