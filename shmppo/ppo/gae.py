"""Advantages and value targets: pure functions of one rollout."""

from __future__ import annotations

import numpy as np

from shmppo.parallel.process_group import SINGLE_PROCESS, ProcessGroup


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
    """Generalized advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16), cut at episode ends.

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
    next_values = np.where(truncated, bootstraps, np.roll(values, -1, axis=0))
    next_values[-1] = bootstraps[-1]
    next_values[terminated] = 0.0
    advantages = rewards + gamma * next_values.astype(np.float64) - values  # δ, then A from behind
    carried = np.where(terminated | truncated, 0.0, gamma * gae_lambda)
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += carried[t] * advantages[t + 1]
    return advantages.astype(np.float32)


def discounted_returns(rewards: np.ndarray, ended: np.ndarray, start: np.ndarray, gamma: float) -> np.ndarray:
    """Running discounted return R[t] = γ·R[t−1]·(1 − ended[t−1]) + r[t], what reward scaling is measured on.

    Args:
        rewards: [T, N]; ended: [T, N] bool, the episode ended with step t.
        start: [N], γ-less carry from the step before the first; 0 where an episode begins.

    Returns:
        R, float64 [T, N]; the next rollout starts with its last row, 0 where an episode ended with that step.
    """
    returns = rewards.astype(np.float64)
    carried = np.where(ended, 0.0, gamma)
    returns[0] += gamma * start
    for t in range(1, len(rewards)):
        returns[t] += carried[t - 1] * returns[t - 1]
    return returns


def explained_variance(
    values: np.ndarray, targets: np.ndarray, taken: np.ndarray | None = None, ranks: ProcessGroup = SINGLE_PROCESS
) -> float:
    """1 − Var(target − value) / Var(target) over all ranks, 1 for a perfect critic; NaN where targets do not vary.

    Args:
        values, targets: [T, N].
        taken: [N], steps of each column that exist; None: all T.
    """
    exist = np.arange(len(values))[:, None] < (len(values) if taken is None else taken)
    exist = np.broadcast_to(exist, values.shape)
    moments = [
        (np.var(numbers[exist], dtype=np.float64), np.mean(numbers[exist], dtype=np.float64), exist.sum())
        for numbers in (targets, targets - values)
    ]
    variances, means, counts = np.moveaxis(ranks.gather(np.array(moments)), -1, 0)  # each [R, 2]
    weights = counts / counts.sum(axis=0)
    between = np.square(means - (weights * means).sum(axis=0))
    total, unexplained = (weights * (variances + between)).sum(axis=0).tolist()
    return 1 - unexplained / total if total > 0 else float("nan")


def last_steps(taken: np.ndarray, steps: int) -> np.ndarray:
    """Where each column's last existing step is, bool [T, N]; taken [N] counts the existing ones, T = `steps`."""
    return np.arange(1, steps + 1)[:, None] == taken
