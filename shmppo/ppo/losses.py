"""The PPO loss and its slopes: pure functions of tensors, no configuration, logger or device inside.

A slope is the derivative of a per-step term with respect to log π or to the value. The update hands slopes to
autograd where the network's outputs are, so that the graph holds the network and log π, and nothing of the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_objective(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO-Clip per step, to be maximized: min(ρA, clip(ρ, 1 − ε, 1 + ε)A) (arXiv 1707.06347, eq. 7)."""
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped_objective_grad(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """∂/∂log π of `clipped_objective`: ρA, or 0 where the clipped term is the smaller."""
    plain = ratio * advantages
    return plain * (plain <= ratio.clamp(1 - clip, 1 + clip) * advantages)


def dimension_clipped_objective(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Dimension-wise clipping per step, to be maximized: A · Π_d s·min(s·ρ_d, s·clip(ρ_d, 1 − ε, 1 + ε)), s = sign(A).

    One dimension out of range keeps the others' gradient, where the joint ratio would lose all of it; with one
    dimension it is `clipped_objective` (DISC: Han and Sung, ICML 2019, arXiv 1905.02363).

    Args:
        ratios: [..., A], of each action dimension; advantages: [...].

    Returns:
        [...].
    """
    return advantages * _bounded(ratios, advantages, clip).prod(-1)


def dimension_clipped_objective_grad(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """∂/∂log π_d of `dimension_clipped_objective` [..., A]: its value, or 0 where d's clipped term is taken."""
    bounded = _bounded(ratios, advantages, clip)
    return (advantages * bounded.prod(-1)).unsqueeze(-1) * (bounded == ratios)


def _bounded(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """s·min(s·ρ_d, s·clip(ρ_d)): at most 1 + ε where the advantage is positive, at least 1 − ε where it is not."""
    positive = (advantages > 0).unsqueeze(-1)
    return torch.where(positive, ratios.clamp(max=1 + clip), ratios.clamp(min=1 - clip))


def dual_clipped(objective: Tensor, advantages: Tensor, limit: float) -> Tensor:
    """Dual clip of an objective per step: at least cA where A < 0, so that a large ratio cannot dominate.

    limit: c > 1 (Ye et al., arXiv 1912.09729, eq. 3).
    """
    return torch.where(advantages < 0, torch.max(objective, limit * advantages), objective)


def dual_clipped_grad(slope: Tensor, objective: Tensor, advantages: Tensor, limit: float) -> Tensor:
    """∂/∂log π of `dual_clipped`: the slope of the objective, or 0 where the limit is taken.

    Args:
        slope: [...] or, per action dimension, [..., A]; the others: [...].
    """
    kept = (advantages >= 0) | (objective >= limit * advantages)
    return slope * (kept if slope.dim() == kept.dim() else kept.unsqueeze(-1))


def unclipped_objective(ratio: Tensor, advantages: Tensor) -> Tensor:
    """ρA per step, what PPO-Penalty maximizes less β·KL (arXiv 1707.06347, eq. 8); also its own slope by log π."""
    return ratio * advantages


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """½(V − R)² per step; with `clip`, the larger of that and the same of V clipped to old ± clip."""
    plain = (values - targets).square()
    if clip is None:
        return 0.5 * plain
    near = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.max(plain, (near - targets).square())


def value_loss_grad(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """∂/∂V of `value_loss`: V − R, or 0 where the clipped term is the larger."""
    error = values - targets
    if clip is None:
        return error
    near = old_values + (values - old_values).clamp(-clip, clip) - targets
    return error * (error.square() >= near.square())


def kl_estimate(log_ratio: Tensor, ratio: Tensor) -> Tensor:
    """k3 = (ρ − 1) − log ρ per step, an unbiased, non-negative estimate of KL(π_old ‖ π) in nats."""
    return ratio - 1 - log_ratio
