"""Sequences, minibatches, and shards: together they are the rollout, and each is what its docstring says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from conftest import planned, sampled
from test_gradients import CONFIG

from shmppo.errors import ShmppoError
from shmppo.ppo.gradients import pack_steps
from shmppo.ppo.loss import Loss
from shmppo.ppo.minibatches import assign_shards, cut_sequences, equal_cuts, shuffle_sequences
from shmppo.utils.rng import MINIBATCHES, keyed_generator


def first_steps(T: int, *columns: list[int]) -> np.ndarray:
    first = np.zeros((T, len(columns)), bool)
    for n, starts in enumerate(columns):
        first[starts, n] = True
    return first


def test_sequences_by_hand() -> None:
    # L = 4. Column 0 continues an episode, and one begins at 6. In column 1 episodes begin at 0 and 9.
    sequences = cut_sequences(first_steps(10, [6], [0, 9]), 4)
    assert sequences.tolist() == [
        # start, env, length, slot
        [0, 0, 4, 0],
        [4, 0, 2, 1],
        [6, 0, 4, -1],
        [0, 1, 4, -1],
        [4, 1, 4, 0],
        [8, 1, 1, 1],
        [9, 1, 1, -1],
    ]


def test_without_a_core_every_step_is_a_sequence() -> None:
    sequences = cut_sequences(first_steps(3, [1], []), 1)
    assert sequences[:, 0].tolist() == [0, 1, 2] * 2
    assert set(sequences[:, 2]) == {1}


@pytest.mark.parametrize("sequence_steps", [1, 3, 8, 50])
def test_sequences_cover_the_rollout_once_and_contain_no_reset(sequence_steps: int) -> None:
    rng = np.random.default_rng(0)
    first = rng.random((37, 5)) < 0.15
    sequences = cut_sequences(first, sequence_steps)
    index, active, _ = pack_steps(sequences[np.argsort(-sequences[:, 2])], rows=5)
    assert sorted(index.tolist()) == list(range(37 * 5))
    assert (len(active), active.sum()) == (sequences[:, 2].max(), len(index))
    for start, env, length, slot in sequences.tolist():
        assert 1 <= length <= sequence_steps
        assert not first[start + 1 : start + length, env].any()
        assert (slot == -1) == first[start, env]
    for env in range(5):
        slots = [slot for _, e, _, slot in sequences.tolist() if e == env and slot >= 0]
        assert slots == list(range(len(slots)))
        assert len(slots) <= -(-37 // sequence_steps)


def test_steps_are_packed_by_time_by_hand() -> None:
    index, active, member = pack_steps(np.array([[0, 0, 4, 0], [2, 1, 2, -1]]), rows=3)
    assert index.tolist() == [0, 7, 3, 10, 6, 9]
    assert active.tolist() == [2, 2, 1, 1]
    assert member.tolist() == [0, 1, 0, 1, 0, 0]


def test_equal_cuts_have_nearly_equal_step_counts() -> None:
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


def test_minibatches_contain_every_sequence_once_and_differ_between_epochs() -> None:
    sequences = cut_sequences(np.random.default_rng(0).random((64, 6)) < 0.1, 8)
    orders = []
    for epoch in range(2):
        order, cuts = shuffle_sequences(sequences[:, 2], 4, keyed_generator(1, MINIBATCHES, epoch=epoch))
        assert sorted(order.tolist()) == list(range(len(sequences)))
        assert (cuts[0], cuts[-1], len(cuts)) == (0, len(sequences), 5)
        steps = np.add.reduceat(sequences[order, 2], cuts[:-1])
        assert np.abs(steps - 64 * 6 / 4).max() <= 8
        orders.append(order.tolist())
    assert orders[0] != orders[1]


def test_fewer_sequences_than_minibatches_are_an_error() -> None:
    with pytest.raises(ShmppoError, match="a rollout has 2 sequences, but --minibatches is 3; lower it, or raise"):
        shuffle_sequences(np.array([8, 8]), 3, keyed_generator(1, MINIBATCHES))


@pytest.mark.parametrize(("steps", "bounds"), [([9, 4, 4], [0, 1, 2, 3, 3, 3]), ([9], [0, 1, 1])])
def test_with_fewer_sequences_than_shards_the_last_shards_are_empty(steps: list[int], bounds: list[int]) -> None:
    order, cuts = np.arange(len(steps)), np.array([0, len(steps)])
    assert assign_shards(order, cuts, np.array(steps), len(bounds) - 1).tolist() == [bounds]


def test_sequences_end_with_the_valid_steps_by_hand() -> None:
    # L = 4. Environment 0 has 7 valid steps and an episode that begins at 6, environment 1 has 4.
    sequences = cut_sequences(first_steps(10, [6], [0, 9]), 4, np.array([7, 4]))
    assert sequences.tolist() == [[0, 0, 4, 0], [4, 0, 2, 1], [6, 0, 1, -1], [0, 1, 4, -1]]


def test_shards_of_each_minibatch_have_the_longest_sequences_first() -> None:
    order, steps = np.array([0, 1, 2, 3, 4, 5]), np.array([2, 4, 4, 9, 1, 8])
    # The shards of minibatch 0 have 4 and 4 + 2 steps, those of minibatch 1 have 9 and 8 + 1.
    bounds = assign_shards(order, np.array([0, 3, 6]), steps, 2)
    assert order.tolist() == [1, 2, 0, 3, 5, 4]
    assert bounds.tolist() == [[0, 1, 3], [3, 4, 6]]


@pytest.mark.parametrize("over", ["minibatch", "global", "none"])
def test_advantage_scales_against_numpy(over: str) -> None:
    config = dataclasses.replace(CONFIG, advantage_norm=over)  # type: ignore[arg-type]
    buffers, learner, _ = sampled(config)
    advantages, plan = planned(buffers, learner), buffers.minibatches
    for epoch in range(config.epochs):
        seen = []
        for m in range(config.minibatches):
            bounds = plan.bounds[epoch, m]
            sequences = plan.sequences[plan.order[epoch, bounds[0] : bounds[-1]]]
            steps = np.concatenate([advantages[s : s + length, n] for s, n, length, _ in sequences.tolist()])
            seen.append(len(steps))
            basis = {"minibatch": steps, "global": advantages, "none": np.array([-1.0, 1.0])}[over].astype(np.float64)
            mean, scale = plan.advantage_scale[epoch, m]
            np.testing.assert_allclose([mean, 1 / scale], [basis.mean(), basis.std()], rtol=1e-6, atol=1e-7)
        assert plan.steps[epoch].tolist() == seen
        assert sum(seen) == config.batch_steps


def test_targets_of_every_step() -> None:
    buffers, learner, _ = sampled(CONFIG)
    advantages, rollout = planned(buffers, learner), buffers.rollout
    targets = buffers.minibatches.step_targets.reshape(CONFIG.rollout_steps, CONFIG.num_envs, 4)
    np.testing.assert_array_equal(targets[..., 0], advantages)
    np.testing.assert_array_equal(targets[..., 1], advantages + rollout.value)
    np.testing.assert_array_equal(targets[..., 2], rollout.value)
    np.testing.assert_array_equal(targets[..., 3:], rollout.log_prob)
    expected = Loss(learner.config).coefficients(learner.schedule, 0)
    np.testing.assert_array_equal(buffers.minibatches.coefficients, expected)
