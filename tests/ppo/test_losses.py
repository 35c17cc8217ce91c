"""Losses and their derivatives against hand computations and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from shmppo.ppo.losses import (
    clipped_objective,
    dimension_clipped_objective,
    dual_clipped,
    kl_estimate,
    unclipped_objective,
    value_loss,
)


def derivative(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """The derivative of a sum over elements by central differences."""
    return (function(x + 1e-6) - function(x - 1e-6)) / 2e-6


def test_clipped_objective_by_hand() -> None:
    ratio = np.array([0.5, 0.5, 1.0, 1.5, 1.5])
    advantages = np.array([2.0, -2.0, 3.0, 2.0, -2.0])
    objective, gradient = clipped_objective(ratio, advantages, 0.2)
    # clip .2: min(1, 1.6) · min(−1, −1.6) · 3 · min(3, 2.4) · min(−3, −2.4)
    np.testing.assert_allclose(objective, [1.0, -1.6, 3.0, 2.4, -3.0])
    np.testing.assert_allclose(gradient, [1.0, 0.0, 3.0, 0.0, -3.0])


def test_clipping_by_dimension_by_hand() -> None:
    ratios = np.array([[1.5, 0.5], [1.5, 0.5], [1.1, 0.9]])
    advantages = np.array([2.0, -2.0, -1.0])
    objective, gradient = dimension_clipped_objective(ratios, advantages, 0.2)
    # clip .2: 2 · (1.2 · 0.5) · −2 · (1.5 · 0.8) · −1 · (1.1 · 0.9)
    np.testing.assert_allclose(objective, [1.2, -2.4, -0.99])
    # A dimension that is clipped has no gradient. The other one keeps its gradient.
    np.testing.assert_allclose(gradient, [[0.0, 1.2], [-2.4, 0.0], [-0.99, -0.99]])


def test_clipping_by_dimension_with_one_dimension_is_joint_clipping() -> None:
    generator = np.random.default_rng(0)
    ratio, advantages = np.exp(generator.standard_normal(500)), generator.standard_normal(500)
    objective, gradient = dimension_clipped_objective(ratio[:, np.newaxis], advantages, 0.2)
    joint, joint_gradient = clipped_objective(ratio, advantages, 0.2)
    np.testing.assert_array_equal(objective, joint)
    np.testing.assert_array_equal(gradient[:, 0], joint_gradient)


def test_dual_clip_by_hand() -> None:
    ratio, advantages = np.array([4.0, 4.0, 2.0]), np.array([1.0, -1.0, -1.0])
    plain, gradient = clipped_objective(ratio, advantages, 0.2)
    assert plain.tolist() == pytest.approx([1.2, -4.0, -2.0])
    clipped, clipped_gradient = dual_clipped(plain, gradient, advantages, 3.0)
    assert clipped.tolist() == pytest.approx([1.2, -3.0, -2.0])
    assert clipped_gradient.tolist() == pytest.approx([0.0, 0.0, -2.0])


def test_value_loss_by_hand() -> None:
    values, targets, old = np.array([3.0, 1.0]), np.array([1.0, 1.0]), np.array([0.0, 0.0])
    loss, gradient = value_loss(values, targets, old, None)
    assert (loss.tolist(), gradient.tolist()) == ([2.0, 0.0], [2.0, 0.0])
    # clipped to 0 ± .5: (.5 − 1)² = .25; the larger of (4, .25) and (0, .25), halved
    loss, gradient = value_loss(values, targets, old, 0.5)
    assert (loss.tolist(), gradient.tolist()) == ([2.0, 0.125], [2.0, 0.0])


def test_derivatives_agree_with_finite_differences() -> None:
    log_prob, old, advantages, values, targets, old_values = np.random.default_rng(0).standard_normal((6, 200))

    def objective(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return clipped_objective(np.exp(x - old), advantages, 0.2)

    gradient = objective(log_prob)[1]
    np.testing.assert_allclose(gradient, derivative(lambda x: objective(x)[0], log_prob), rtol=1e-5, atol=1e-7)
    assert 0 < np.count_nonzero(gradient == 0) < 200
    for clip in (None, 0.2):
        gradient = value_loss(values, targets, old_values, clip)[1]
        expected = derivative(lambda x, clip=clip: value_loss(x, targets, old_values, clip)[0], values)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dual", [None, 1.5])
def test_derivatives_by_dimension_agree_with_finite_differences(dual: float | None) -> None:
    generator = np.random.default_rng(0)
    log_prob, advantages = 0.3 * generator.standard_normal((200, 3)), generator.standard_normal(200)

    def objective(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        plain, gradient = dimension_clipped_objective(np.exp(x), advantages, 0.2)
        return (plain, gradient) if dual is None else dual_clipped(plain, gradient, advantages, dual)

    gradient = objective(log_prob)[1]
    for d in range(3):

        def along(x: np.ndarray, d: int = d) -> np.ndarray:
            return objective(np.concatenate([log_prob[:, :d], x[:, np.newaxis], log_prob[:, d + 1 :]], 1))[0]

        np.testing.assert_allclose(gradient[:, d], derivative(along, log_prob[:, d]), rtol=1e-5, atol=1e-7)
    expected = derivative(lambda x: unclipped_objective(np.exp(x), advantages)[0], log_prob[:, 0])
    np.testing.assert_allclose(unclipped_objective(np.exp(log_prob[:, 0]), advantages)[1], expected, rtol=1e-5)


def test_kl_estimate_is_zero_only_without_change_and_never_negative() -> None:
    log_ratio = np.arange(-20, 21) / 10
    kl = kl_estimate(log_ratio, np.exp(log_ratio))
    assert kl[20] == 0
    assert (kl >= 0).all()
    assert kl[0] == pytest.approx(math.exp(-2) - 1 + 2)
