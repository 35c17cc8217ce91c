"""The PPO loss and its slopes: pure functions of tensors, no configuration, logger or device inside.

A slope is the derivative of a per-step term with respect to log π or to the value. The update hands slopes to
autograd where the network's outputs are, so that the graph holds the network and log π, and nothing of the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_objective(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO-Clip per step, to be maximised: min(ρA, clip(ρ, 1 − ε, 1 + ε)A) (arXiv 1707.06347, eq. 7)."""
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped_objective_slope(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """∂/∂log π of `clipped_objective`: ρA, or 0 where the clipped term is the smaller."""
    plain = ratio * advantages
    return plain * (plain <= ratio.clamp(1 - clip, 1 + clip) * advantages)


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """½(V − R)² per step; with `clip`, the larger of that and the same of V clipped to old ± clip."""
    plain = (values - targets).square()
    if clip is None:
        return 0.5 * plain
    near = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.max(plain, (near - targets).square())


def value_loss_slope(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """∂/∂V of `value_loss`: V − R, or 0 where the clipped term is the larger."""
    error = values - targets
    if clip is None:
        return error
    near = old_values + (values - old_values).clamp(-clip, clip) - targets
    return error * (error.square() >= near.square())


def kl_estimate(log_ratio: Tensor, ratio: Tensor) -> Tensor:
    """k3 = (ρ − 1) − log ρ per step, an unbiased, non-negative estimate of KL(π_old ‖ π) in nats."""
    return ratio - 1 - log_ratio
