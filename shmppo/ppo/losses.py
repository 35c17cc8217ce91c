"""PPO losses as functions of NumPy arrays.

Each returns its value per step and the derivative by hand: that of an objective with respect to log π(a|s), that of the
value loss with respect to V. Arguments and results are arrays of the same shape [...], with one element per step,
unless a docstring says otherwise.

Symbols: ρ = π(a|s) / π_old(a|s), the ratio; A, the advantage; ε, the clip range; V, the value; R, the value target.
"""

from __future__ import annotations

import numpy as np


def _clip(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return x between two bounds. np.clip takes several times as long for small arrays."""
    return np.minimum(np.maximum(x, low), high)


def clipped_objective(ratio: np.ndarray, advantages: np.ndarray, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """PPO-Clip objective per step, to be maximized: min(ρA, clip(ρ, 1 − ε, 1 + ε)A).

    Its derivative is ρA, or 0 where the clipped term is smaller. This follows from ∂ρ/∂log π = ρ.

    Source: Schulman et al., arXiv 1707.06347, eq. 7.
    """
    unclipped = ratio * advantages
    clipped = _clip(ratio, 1 - clip, 1 + clip) * advantages
    return np.minimum(unclipped, clipped), np.where(unclipped <= clipped, unclipped, 0)


def dimension_clipped_objective(
    ratios: np.ndarray, advantages: np.ndarray, clip: float
) -> tuple[np.ndarray, np.ndarray]:
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
        (objective [...], derivative with respect to log π of each action dimension [..., D]). The derivative is the
        objective itself, or 0 in dimensions whose ratio is clipped.
    """
    # s·min(s·ρ_d, s·clip(ρ_d)) is ρ_d, but at most 1 + ε where A > 0, and at least 1 − ε elsewhere.
    positive = (advantages > 0)[..., np.newaxis]
    bounded = np.where(positive, np.minimum(ratios, 1 + clip), np.maximum(ratios, 1 - clip))
    objective = advantages * bounded.prod(-1)
    return objective, objective[..., np.newaxis] * (bounded == ratios)


def dual_clipped(
    objective: np.ndarray, gradient: np.ndarray, advantages: np.ndarray, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Dual clip of an objective per step: max(objective, cA) where A < 0, else the objective.

    It limits the effect of large ratios.

    Source: Ye et al., arXiv 1912.09729, eq. 3.

    Args:
        objective: [...], from `clipped_objective` or `dimension_clipped_objective`.
        gradient: its derivative, [...] or, per action dimension, [..., D].
        advantages: [...].
        limit: c > 1.

    Returns:
        (objective, gradient) after the clip. The gradient is 0 where the dual clip limits the objective.
    """
    kept = (advantages >= 0) | (objective >= limit * advantages)
    clipped = np.where(kept, objective, limit * advantages)
    return clipped, np.where(kept if gradient.ndim == kept.ndim else kept[..., np.newaxis], gradient, 0)


def unclipped_objective(ratio: np.ndarray, advantages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Objective of PPO-Penalty per step, without the penalty β·KL, to be maximized: ρA. Its derivative is also ρA.

    Source: Schulman et al., arXiv 1707.06347, eq. 8.
    """
    objective = ratio * advantages
    return objective, objective


def value_loss(
    values: np.ndarray, targets: np.ndarray, old_values: np.ndarray, clip: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Value loss per step: ½(V − R)². Its derivative is V − R.

    With `clip` it is ½ max((V − R)², (V_clip − R)²), where V_clip = V_old + clip(V − V_old, −ε, ε). The derivative is 0
    where |V − V_old| > ε and the clipped term is larger.

    Source: the `ppo2` implementation in OpenAI Baselines.
    """
    error = values - targets
    squared = error * error
    if clip is None:
        return 0.5 * squared, error
    change = values - old_values
    # Written this way, V_clip is exactly V within the clip range. V_old + (V − V_old) may differ by a rounding error,
    # and the comparison below would drop the derivative.
    clipped_error = error - (change - _clip(change, -clip, clip))
    clipped = clipped_error * clipped_error
    return 0.5 * np.maximum(squared, clipped), error * (squared >= clipped)


def kl_estimate(log_ratio: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Estimate of KL(π_old ‖ π) per step in nats: (ρ − 1) − log ρ.

    It is unbiased and never negative.

    Source: the estimator k3 in J. Schulman, "Approximating KL Divergence", 2020.
    """
    return ratio - 1 - log_ratio
