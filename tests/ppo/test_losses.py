"""Losses and their gradients against hand computations and autograd."""

from __future__ import annotations

import math

import pytest
import torch

from shmppo.ppo.losses import (
    clipped_objective,
    clipped_objective_grad,
    dimension_clipped_objective,
    dimension_clipped_objective_grad,
    dual_clipped,
    dual_clipped_grad,
    kl_estimate,
    unclipped_objective,
    value_loss,
    value_loss_grad,
)


def test_clipped_objective_by_hand() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5])
    advantages = torch.tensor([2.0, -2.0, 3.0, 2.0, -2.0])
    # clip .2: min(1, 1.6) · min(−1, −1.6) · 3 · min(3, 2.4) · min(−3, −2.4)
    expected = torch.tensor([1.0, -1.6, 3.0, 2.4, -3.0])
    torch.testing.assert_close(clipped_objective(ratio, advantages, 0.2), expected)


def test_clipping_by_dimension_by_hand() -> None:
    ratios = torch.tensor([[1.5, 0.5], [1.5, 0.5], [1.1, 0.9]])
    advantages = torch.tensor([2.0, -2.0, -1.0])
    # clip .2: 2 · (1.2 · 0.5) · −2 · (1.5 · 0.8) · −1 · (1.1 · 0.9)
    torch.testing.assert_close(dimension_clipped_objective(ratios, advantages, 0.2), torch.tensor([1.2, -2.4, -0.99]))
    # A dimension that is clipped has no gradient. The other one keeps its gradient.
    expected = torch.tensor([[0.0, 1.2], [-2.4, 0.0], [-0.99, -0.99]])
    torch.testing.assert_close(dimension_clipped_objective_grad(ratios, advantages, 0.2), expected)


def test_clipping_by_dimension_with_one_dimension_is_joint_clipping() -> None:
    generator = torch.Generator().manual_seed(0)
    ratio = torch.randn(500, generator=generator).exp()
    advantages = torch.randn(500, generator=generator)
    one = ratio.unsqueeze(-1)
    assert torch.equal(dimension_clipped_objective(one, advantages, 0.2), clipped_objective(ratio, advantages, 0.2))
    gradients = dimension_clipped_objective_grad(one, advantages, 0.2)
    assert torch.equal(gradients.squeeze(-1), clipped_objective_grad(ratio, advantages, 0.2))


def test_dual_clip_by_hand() -> None:
    ratio, advantages = torch.tensor([4.0, 4.0, 2.0]), torch.tensor([1.0, -1.0, -1.0])
    plain, gradient = clipped_objective(ratio, advantages, 0.2), clipped_objective_grad(ratio, advantages, 0.2)
    assert plain.tolist() == pytest.approx([1.2, -4.0, -2.0])
    assert dual_clipped(plain, advantages, 3.0).tolist() == pytest.approx([1.2, -3.0, -2.0])
    assert dual_clipped_grad(gradient, plain, advantages, 3.0).tolist() == pytest.approx([0.0, 0.0, -2.0])


def test_value_loss_by_hand() -> None:
    values, targets, old = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0])
    torch.testing.assert_close(value_loss(values, targets, old, None), torch.tensor([2.0, 0.0]))
    # clipped to 0 ± .5: (.5 − 1)² = .25; the larger of (4, .25) and (0, .25), halved
    torch.testing.assert_close(value_loss(values, targets, old, 0.5), torch.tensor([2.0, 0.125]))


def test_gradients_agree_with_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    log_prob, old, advantages, values, targets, old_values = torch.randn(
        6, 200, dtype=torch.float64, generator=generator
    )
    log_prob.requires_grad_()
    values.requires_grad_()
    ratio = (log_prob - old).exp()
    (expected,) = torch.autograd.grad(clipped_objective(ratio, advantages, 0.2).sum(), log_prob)
    gradient = clipped_objective_grad(ratio.detach(), advantages, 0.2)
    torch.testing.assert_close(gradient, expected)
    assert 0 < (gradient == 0).sum() < 200
    for clip in (None, 0.2):
        (expected,) = torch.autograd.grad(value_loss(values, targets, old_values, clip).sum(), values)
        torch.testing.assert_close(value_loss_grad(values.detach(), targets, old_values, clip), expected)


@pytest.mark.parametrize("dual", [None, 1.5])
def test_gradients_by_dimension_agree_with_autograd(dual: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    log_prob = torch.randn(200, 3, dtype=torch.float64, generator=generator).mul_(0.3).requires_grad_()
    advantages = torch.randn(200, dtype=torch.float64, generator=generator)
    objective = dimension_clipped_objective(log_prob.exp(), advantages, 0.2)
    gradient = dimension_clipped_objective_grad(log_prob.detach().exp(), advantages, 0.2)
    if dual is not None:
        gradient = dual_clipped_grad(gradient, objective.detach(), advantages, dual)
        objective = dual_clipped(objective, advantages, dual)
    (expected,) = torch.autograd.grad(objective.sum(), log_prob)
    torch.testing.assert_close(gradient, expected)
    (expected,) = torch.autograd.grad(unclipped_objective(log_prob.sum(-1).exp(), advantages).sum(), log_prob)
    gradient = unclipped_objective(log_prob.detach().sum(-1).exp(), advantages)
    torch.testing.assert_close(gradient.unsqueeze(-1).expand(-1, 3), expected)


def test_kl_estimate_is_zero_only_without_change_and_never_negative() -> None:
    log_ratio = torch.arange(-20, 21) / 10
    kl = kl_estimate(log_ratio, log_ratio.exp())
    assert kl[20] == 0
    assert (kl >= 0).all()
    torch.testing.assert_close(kl[0], torch.tensor(math.exp(-2) - 1 + 2))
