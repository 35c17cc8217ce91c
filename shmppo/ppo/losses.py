"""PPO losses and their gradients: functions of tensors, without state.

Most functions come in pairs: a loss or objective per step, and `*_grad`, its derivative with respect to log π or the
value. The derivatives are written by hand, because the backward pass is then faster. The update passes them to autograd
as gradients of the network's outputs. So the autograd graph contains only the network and log π.

Symbols: ρ = π(a|s) / π_old(a|s), the ratio; A, the advantage; ε, the clip range; V, the value; R, the value target.
Arguments and results are tensors of the same shape [...], with one element per step, unless a docstring says otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_objective(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO-Clip objective per step, to be maximized: min(ρA, clip(ρ, 1 − ε, 1 + ε)A).

    Source: Schulman et al., arXiv 1707.06347, eq. 7.
    """
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped_objective_grad(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Derivative of `clipped_objective` with respect to log π: ρA, or 0 where the clipped term is smaller.

    This follows from ∂ρ/∂log π = ρ.
    """
    unclipped = ratio * advantages
    return unclipped * (unclipped <= ratio.clamp(1 - clip, 1 + clip) * advantages)


def dimension_clipped_objective(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO-Clip objective per step with one ratio per action dimension, to be maximized.

        A · Π_d s·min(s·ρ_d, s·clip(ρ_d, 1 − ε, 1 + ε)),   s = sign(A)

    If the ratio of one dimension is clipped, the other dimensions keep their gradient. In `clipped_objective`,
    a clipped ratio sets the whole gradient to 0. With one action dimension, both functions are equal.

    Source: DISC, Han and Sung, ICML 2019, arXiv 1905.02363.

    Args:
        ratios: [..., D], one per action dimension.
        advantages: [...].
        clip: ε.

    Returns:
        [...].
    """
    return advantages * _bounded(ratios, advantages, clip).prod(-1)


def dimension_clipped_objective_grad(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Derivative of `dimension_clipped_objective` with respect to log π of each action dimension, [..., D].

    It is the objective itself, or 0 in dimensions whose ratio is clipped.
    """
    bounded = _bounded(ratios, advantages, clip)
    return (advantages * bounded.prod(-1)).unsqueeze(-1) * (bounded == ratios)


def _bounded(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return s·min(s·ρ_d, s·clip(ρ_d)): ρ_d, but at most 1 + ε where A > 0, and at least 1 − ε elsewhere."""
    positive = (advantages > 0).unsqueeze(-1)
    return torch.where(positive, ratios.clamp(max=1 + clip), ratios.clamp(min=1 - clip))


def dual_clipped(objective: Tensor, advantages: Tensor, limit: float) -> Tensor:
    """Dual clip of an objective per step: max(objective, cA) where A < 0, else the objective.

    It limits the effect of large ratios.

    Source: Ye et al., arXiv 1912.09729, eq. 3.

    Args:
        objective: [...], from `clipped_objective` or `dimension_clipped_objective`.
        advantages: [...].
        limit: c > 1.
    """
    return torch.where(advantages < 0, torch.max(objective, limit * advantages), objective)


def dual_clipped_grad(gradient: Tensor, objective: Tensor, advantages: Tensor, limit: float) -> Tensor:
    """Derivative of `dual_clipped` with respect to log π.

    Args:
        gradient: derivative of the objective, [...] or, per action dimension, [..., D].
        objective: [...], before the dual clip.
        advantages: [...].
        limit: c > 1.

    Returns:
        `gradient`, or 0 where the dual clip limits the objective.
    """
    kept = (advantages >= 0) | (objective >= limit * advantages)
    return gradient * (kept if gradient.dim() == kept.dim() else kept.unsqueeze(-1))


def unclipped_objective(ratio: Tensor, advantages: Tensor) -> Tensor:
    """Objective of PPO-Penalty per step, without the penalty β·KL, to be maximized: ρA.

    Its derivative with respect to log π is also ρA.

    Source: Schulman et al., arXiv 1707.06347, eq. 8.
    """
    return ratio * advantages


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Value loss per step: ½(V − R)².

    With `clip` it is ½ max((V − R)², (V_clip − R)²), where V_clip = V_old + clip(V − V_old, −ε, ε).

    Source: the `ppo2` implementation in OpenAI Baselines.
    """
    unclipped = (values - targets).square()
    if clip is None:
        return 0.5 * unclipped
    clipped_values = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.max(unclipped, (clipped_values - targets).square())


def value_loss_grad(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Derivative of `value_loss` with respect to V: V − R, or 0 where the clipped term is larger."""
    error = values - targets
    if clip is None:
        return error
    clipped_error = old_values + (values - old_values).clamp(-clip, clip) - targets
    return error * (error.square() >= clipped_error.square())


def kl_estimate(log_ratio: Tensor, ratio: Tensor) -> Tensor:
    """Estimate of KL(π_old ‖ π) per step in nats: (ρ − 1) − log ρ.

    It is unbiased and never negative.

    Source: the estimator k3 in J. Schulman, "Approximating KL Divergence", 2020.
    """
    return ratio - 1 - log_ratio
