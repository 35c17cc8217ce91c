"""Losses and their derivatives against hand computations and autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from shmppo.ppo.loss import (
    clipped_objective,
    dimension_clipped_objective,
    kl_estimate,
    squared_error,
)


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


def test_a_clipped_step_has_no_gradient_even_if_its_ratio_overflows() -> None:
    objective, gradient = clipped_objective(np.array([np.inf]), np.array([1.0]), 0.2)
    assert (objective.tolist(), gradient.tolist()) == ([1.2], [0.0])


def test_value_loss_by_hand() -> None:
    values, targets, old = np.array([3.0, 1.0]), np.array([1.0, 1.0]), np.array([0.0, 0.0])
    loss, gradient = squared_error(values, targets, old, None)
    assert (loss.tolist(), gradient.tolist()) == ([2.0, 0.0], [2.0, 0.0])
    # clipped to 0 ± .5: (.5 − 1)² = .25; the larger of (4, .25) and (0, .25), halved
    loss, gradient = squared_error(values, targets, old, 0.5)
    assert (loss.tolist(), gradient.tolist()) == ([2.0, 0.125], [2.0, 0.0])


def autograd(function: Callable[[torch.Tensor], torch.Tensor], x: np.ndarray) -> np.ndarray:
    """The derivative of a sum over elements, by torch in float64."""
    variable = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    function(variable).sum().backward()
    assert variable.grad is not None
    return variable.grad.numpy()


def around_the_clip_range(count: int, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Random numbers in −2 … 2, half of them within 0.01 of ±1, none closer to ±1 than float32 can tell."""
    generator = np.random.default_rng(count)
    anywhere = generator.uniform(-2, 2, (count, *shape))
    near = generator.choice([-1.0, 1.0], (count, *shape)) + generator.uniform(-0.01, 0.01, (count, *shape))
    numbers = np.where(generator.random((count, *shape)) < 0.5, anywhere, near)
    return np.where(np.abs(np.abs(numbers) - 1) < 1e-4, 0.5, numbers)


def test_value_loss_keeps_the_derivative_within_the_clip_range() -> None:
    # In float32, 0.16324401 + (0.020179268 − 0.16324401) is not 0.020179268, although nothing is clipped.
    value, target, old = (np.array([x], np.float32) for x in (0.020179268, 0.00538757, 0.16324401))
    assert squared_error(value, target, old, 0.2)[1].item() == pytest.approx(0.0147917, rel=1e-5)


@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0, 10.0])
def test_float32_value_loss_agrees_with_autograd_in_float64(spread: float) -> None:
    clip, count = 0.2, 20_000
    generator = np.random.default_rng(0)
    old = (spread * generator.standard_normal(count)).astype(np.float32)
    change = clip * around_the_clip_range(count)
    values = (old + change).astype(np.float32)
    targets = (old + change * generator.uniform(-2, 2, count)).astype(np.float32)
    old64, targets64 = torch.from_numpy(old.astype(np.float64)), torch.from_numpy(targets.astype(np.float64))

    def loss(x: torch.Tensor) -> torch.Tensor:
        clipped = old64 + (x - old64).clamp(-clip, clip)
        return 0.5 * torch.maximum((x - targets64) ** 2, (clipped - targets64) ** 2)

    expected = autograd(loss, values)
    clipped_error = old64.numpy() + np.clip(values - old64.numpy(), -clip, clip) - targets64.numpy()
    kink = np.abs(np.abs(values - targets64.numpy()) - np.abs(clipped_error)) < 1e-5 * (1 + spread)
    kink &= np.abs(values - old64.numpy()) > clip  # outside of the range, two different errors of the same size
    actual = squared_error(values, targets, old, clip)
    np.testing.assert_allclose(actual[1][~kink], expected[~kink], rtol=1e-4, atol=1e-6 * (1 + spread))
    within = np.abs(change) < clip
    np.testing.assert_array_equal(actual[1][within], (values - targets)[within])
    assert 0 < np.count_nonzero(actual[1] == 0) < count / 2
    np.testing.assert_allclose(actual[0], loss(torch.from_numpy(values.astype(np.float64))), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dimensions", [None, 1, 3])
def test_float32_objectives_agree_with_autograd_in_float64(dimensions: int | None) -> None:
    """With `dimensions`, the ratio is per action dimension. None: one ratio per step."""
    clip, count = 0.2, 20_000
    shape = () if dimensions is None else (dimensions,)
    ratios = (1 + clip * around_the_clip_range(count, shape)).astype(np.float32)
    ratios[::4] *= 1.7
    advantages = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    advantages64 = torch.from_numpy(advantages.astype(np.float64))

    def objective(log_prob: torch.Tensor) -> torch.Tensor:
        ratio = log_prob.exp()
        if dimensions is None:
            return torch.minimum(ratio * advantages64, ratio.clamp(1 - clip, 1 + clip) * advantages64)
        sign = advantages64.sign().unsqueeze(-1)
        bounded = torch.minimum(sign * ratio, sign * ratio.clamp(1 - clip, 1 + clip))
        return advantages64 * (sign * bounded).prod(-1)

    function = clipped_objective if dimensions is None else dimension_clipped_objective
    value, gradient = function(ratios, advantages, clip)
    log_ratios = np.log(ratios.astype(np.float64))
    expected = autograd(objective, log_ratios)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(value, objective(torch.from_numpy(log_ratios)), rtol=1e-5, atol=1e-7)


def test_kl_estimate_is_zero_only_without_change_and_never_negative() -> None:
    log_ratio = np.arange(-20, 21) / 10
    kl = kl_estimate(log_ratio, np.exp(log_ratio))
    assert kl[20] == 0
    assert (kl >= 0).all()
    assert kl[0] == pytest.approx(math.exp(-2) - 1 + 2)
