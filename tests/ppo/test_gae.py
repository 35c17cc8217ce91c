"""GAE and discounted returns against numbers computed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shmppo.parallel.process_group import SINGLE_PROCESS
from shmppo.ppo.gae import RewardNormalizer, discounted_returns, explained_variance, generalized_advantages


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32).reshape(-1, 1)


def flags(*values: int) -> np.ndarray:
    return column(*values).astype(bool)


def test_gae_by_hand_with_a_terminated_and_a_truncated_step() -> None:
    # γ = 0.5, λ = 0.5, so γλ = 0.25. Step 1 terminates, step 3 is truncated with V(final) = 8.
    # The episode continues after step 4.
    advantages = generalized_advantages(
        rewards=column(1, 2, 3, 4, 5),
        values=column(1, 2, 4, 2, 6),
        bootstraps=column(99, 99, 99, 8, 10),  # 99: must not be read
        terminated=flags(0, 1, 0, 0, 0), truncated=flags(0, 0, 0, 1, 0), gamma=0.5, gae_lambda=0.5,
    )  # fmt: skip
    # t=4: δ = 5 + .5·10 − 6 = 4
    # t=3: δ = 4 + .5·8 − 2 = 6, the episode ends
    # t=2: δ = 3 + .5·2 − 4 = 0, A = 0 + .25·6 = 1.5
    # t=1: δ = 2 + 0 − 2 = 0, the episode ends
    # t=0: δ = 1 + .5·2 − 1 = 1, A = 1 + .25·0 = 1
    np.testing.assert_array_equal(advantages, column(1, 0, 1.5, 6, 4))


def test_a_step_both_terminated_and_truncated_counts_as_terminated() -> None:
    advantages = generalized_advantages(
        rewards=column(1), values=column(3), bootstraps=column(100), terminated=flags(1), truncated=flags(1), gamma=0.9,
        gae_lambda=0.9,
    )  # fmt: skip
    np.testing.assert_allclose(advantages, column(-2))


def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(20, 3)), rng.normal(size=(20, 3)).astype(np.float32)
    bootstraps = rng.normal(size=(20, 3)).astype(np.float32)
    never = np.zeros((20, 3), bool)
    advantages = generalized_advantages(
        rewards=rewards, values=values, bootstraps=bootstraps, terminated=never, truncated=never,
        gamma=0.9, gae_lambda=1.0,
    )  # fmt: skip
    expected = bootstraps[-1].astype(np.float64)
    for t in reversed(range(20)):
        expected = rewards[t] + 0.9 * expected
        np.testing.assert_allclose(advantages[t], expected - values[t], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cut", [3, 7, 12])
def test_discounted_returns_do_not_depend_on_where_rollouts_are_cut(cut: int) -> None:
    rng = np.random.default_rng(1)
    rewards, first = rng.normal(size=(16, 2)), rng.random((16, 2)) < 0.2
    whole = discounted_returns(rewards, first, np.zeros(2), 0.9)
    head = discounted_returns(rewards[:cut], first[:cut], np.zeros(2), 0.9)
    tail = discounted_returns(rewards[cut:], first[cut:], head[-1], 0.9)
    np.testing.assert_array_equal(np.concatenate([head, tail]), whole)


def test_discounted_return_starts_again_with_an_episode() -> None:
    returns = discounted_returns(column(1, 1, 1), flags(0, 0, 1), np.array([4.0]), 0.5)
    np.testing.assert_array_equal(returns, column(3, 2.5, 1))


def normalized(normalizer: RewardNormalizer, rewards: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The rewards of a rollout whose steps are all valid and all count."""
    steps = np.full(rewards.shape[1], len(rewards))
    return normalizer.normalize(rewards, first, steps, np.ones(rewards.shape, bool), SINGLE_PROCESS)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_returns_so_far() -> None:
    normalizer = RewardNormalizer(1, 0.5)
    scaled = normalized(normalizer, column(1, 1, 1), flags(1, 0, 1))
    returns = [1.0, 1.5, 1.0]
    assert scaled[:, 0] == pytest.approx(np.ones(3) / np.std(returns), rel=1e-6)
    normalized(normalizer, column(4), flags(0))  # 4 + 0.5 · 1
    scaled = normalized(normalizer, column(2), flags(1))
    assert scaled[0, 0] == pytest.approx(2 / np.std([*returns, 4.5, 2.0]), rel=1e-6)
    normalizer.moments.count = 1e12  # the next rewards hardly change the deviation
    for reward, clipped in ((1e6, 10.0), (-1e6, -10.0)):
        assert normalized(normalizer, column(reward), flags(0)).item() == clipped


def test_a_return_does_not_reach_into_an_episode_that_begins_after_idle_steps() -> None:
    """An agent is idle for a whole rollout, in which its episode ends. Its next action begins another episode."""
    normalizer = RewardNormalizer(1, 0.5)
    normalized(normalizer, column(8), flags(1))
    normalizer.normalize(column(9), flags(0), np.array([0]), np.zeros((1, 1), bool), SINGLE_PROCESS)
    normalized(normalizer, column(2), flags(1))
    assert normalizer.discounted_return.tolist() == [2.0]


def test_explained_variance_by_hand() -> None:
    targets, all_steps = np.array([[1.0, 2.0, 3.0, 4.0]]), np.ones(4)

    def of(values: np.ndarray) -> float:
        return explained_variance(values, targets, all_steps, SINGLE_PROCESS)

    assert of(targets) == 1
    assert of(np.full((1, 4), 2.5)) == 0
    assert of(-targets) == -3
    assert np.isnan(explained_variance(targets, np.ones((1, 4)), all_steps, SINGLE_PROCESS))


def test_explained_variance_ignores_steps_that_are_not_valid() -> None:
    targets = np.array([[1.0, 3.0], [2.0, 99.0]])
    values = np.array([[1.0, 2.0], [2.0, -99.0]])
    # Targets 1, 2, 3: variance 2/3; errors 0, 0, 1: variance 2/9.
    found = explained_variance(values, targets, np.array([2, 1]), SINGLE_PROCESS)
    assert found == pytest.approx(1 - (2 / 9) / (2 / 3))


def test_a_row_that_is_idle_for_a_rollout_keeps_its_discounted_return() -> None:
    normalizer = RewardNormalizer(1, 0.5)
    first, reward = np.array([[True]]), np.array([[8.0]])
    normalizer.normalize(reward, first, np.array([1]), np.ones((1, 1), bool), SINGLE_PROCESS)
    normalizer.normalize(0 * reward, ~first, np.array([0]), np.zeros((1, 1), bool), SINGLE_PROCESS)
    assert normalizer.discounted_return.tolist() == [8.0]


def test_the_explained_variance_of_two_ranks_is_that_of_all_their_environments() -> None:
    generator = np.random.default_rng(3)
    targets = generator.normal([0.0, 5.0, -3.0], 1.0, (6, 3))
    values, steps = targets + generator.normal([1.0, 0.0, 2.0], 0.5, (6, 3)), np.array([6, 4, 5])
    parts: list[np.ndarray] = []
    gather: Any = SimpleNamespace(gather=lambda array: parts.append(array) or array[np.newaxis])
    for own in (slice(0, 1), slice(1, 3)):
        explained_variance(values[:, own], targets[:, own], steps[own], gather)
    both: Any = SimpleNamespace(gather=lambda _: np.array(parts))
    found = explained_variance(values[:, :1], targets[:, :1], steps[:1], both)
    assert found == pytest.approx(explained_variance(values, targets, steps, SINGLE_PROCESS))
