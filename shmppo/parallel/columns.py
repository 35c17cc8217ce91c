"""The columns of shared arrays whose last axis has one element per quantity."""

from __future__ import annotations

from typing import NamedTuple


class LossCoefficients(NamedTuple):
    """The coefficients of the loss in one update."""

    clip_range: float
    """ε of PPO-Clip."""
    policy_coef: float
    """Weight of the objective: 1, or 0 with --objective distill and during --critic-warmup-steps."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    penalty_coef: float
    """β of PPO-Penalty."""
    teacher_coef: float
    """Weight of KL(teacher ‖ policy)."""


class LossTerms(NamedTuple):
    """Means over the steps of a minibatch. A shard's part is its sum divided by the steps of the whole minibatch."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    teacher_kl: float
    auxiliary_loss: float
