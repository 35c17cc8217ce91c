"""Advantages and value targets: pure functions of one rollout."""

from __future__ import annotations

import numpy as np


def generalized_advantages(
    *,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstraps: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16), cut at episode ends.

        δ[t] = r[t] + γ·V'[t] − V[t]
        A[t] = δ[t] + γ·λ·A[t+1]   while the episode goes on after step t, else A[t] = δ[t]

    V'[t] is 0 after a terminated step, `bootstraps[t]` after a truncated one (the value of the final
    observation with the recurrent state after the step) and after the last step T − 1, else V[t+1].
    A step that is both terminated and truncated counts as terminated.

    Args:
        rewards, values, bootstraps: [T, N]; bootstraps is read only where the text above says so.
        terminated, truncated: [T, N] bool.

    Returns:
        Advantages, float32 [T, N]; the value targets are advantages + values.
    """
    steps = len(rewards)
    ended = terminated | truncated
    advantages = np.empty(values.shape, np.float32)
    following = np.zeros(values.shape[1:], np.float64)
    for t in reversed(range(steps)):
        last = t == steps - 1
        going_on = values[t if last else t + 1]
        next_value = np.where(truncated[t] | last, bootstraps[t], going_on)
        next_value = np.where(terminated[t], 0.0, next_value)
        delta = rewards[t] + gamma * next_value - values[t]
        following = delta + gamma * gae_lambda * np.where(ended[t], 0.0, following)
        advantages[t] = following
    return advantages


def discounted_returns(rewards: np.ndarray, ended: np.ndarray, start: np.ndarray, gamma: float) -> np.ndarray:
    """Running discounted return R[t] = γ·R[t−1]·(1 − ended[t−1]) + r[t], what reward scaling is measured on.

    Args:
        rewards: [T, N]; ended: [T, N] bool, the episode ended with step t.
        start: [N], γ-less carry from the step before the first; 0 where an episode begins.

    Returns:
        R, float64 [T + 1, N]: row t for step t, and last the carry for the next rollout.
    """
    returns = np.empty((len(rewards) + 1, *start.shape), np.float64)
    carry = start.astype(np.float64)
    for t in range(len(rewards)):
        returns[t] = gamma * carry + rewards[t]
        carry = np.where(ended[t], 0.0, returns[t])
    returns[-1] = carry
    return returns
