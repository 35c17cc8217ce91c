"""Advantages, discounted returns, and explained variance: functions of one rollout, without state.

Axes: T steps, N environments, R ranks.
"""

from __future__ import annotations

import numpy as np

from shmppo.models.normalization import CLIP, RunningMoments, column_moments
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
    """Generalized advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16).

        δ[t] = r[t] + γ·V'[t] − V[t]
        A[t] = δ[t] + γ·λ·A[t+1]   if the episode continues after step t
        A[t] = δ[t]                if it ends with step t, and for t = T − 1

    V'[t] is the value after step t:
    - 0 if the step is terminated, also if it is truncated as well;
    - `bootstraps[t]` if the step is truncated, and for t = T − 1. After a truncated step this is the value of the final
      observation, with the recurrent state after the step;
    - V[t+1] otherwise.

    Args:
        rewards, values, bootstraps: [T, N]; bootstraps is read only where the list above names it.
        terminated, truncated: [T, N] bool.
        gamma: γ, the discount factor.
        gae_lambda: λ.

    Returns:
        Advantages, float32 [T, N]. The value targets are advantages + values.
    """
    next_values = np.where(truncated, bootstraps, np.roll(values, -1, axis=0))
    next_values[-1] = bootstraps[-1]
    next_values[terminated] = 0.0
    advantages: np.ndarray = rewards + gamma * next_values.astype(np.float64) - values  # δ; the loop turns it into A
    decay = np.where(terminated | truncated, 0.0, gamma * gae_lambda)
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages.astype(np.float32)


def discounted_returns(rewards: np.ndarray, ended: np.ndarray, start: np.ndarray, gamma: float) -> np.ndarray:
    """Running discounted return, whose standard deviation is used to scale rewards.

        R[t] = r[t] + γ·R[t−1]   if the episode continues after step t − 1
        R[t] = r[t]              if it ended with step t − 1

    Args:
        rewards: [T, N].
        ended: [T, N] bool, whether the episode ended with step t.
        start: [N], R of the step before the first one; 0 where an episode begins.
        gamma: γ, the discount factor.

    Returns:
        R, float64 [T, N]. `start` of the next rollout is R[T − 1], or 0 where the episode ended with that step.
    """
    returns = rewards.astype(np.float64)
    decay = np.where(ended, 0.0, gamma)
    returns[0] += gamma * start
    for t in range(1, len(rewards)):
        returns[t] += decay[t - 1] * returns[t - 1]
    return returns


def explained_variance(
    values: np.ndarray,
    targets: np.ndarray,
    valid_steps: np.ndarray | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> float:
    """Explained variance of the critic over all ranks: 1 − Var(target − value) / Var(target).

    Args:
        values, targets: [T, N].
        valid_steps: [N], number of valid steps of each environment; None if all T are valid.
        group: the ranks.

    Returns:
        1 for a perfect critic; NaN if the targets do not vary.
    """
    valid = np.arange(len(values))[:, None] < (len(values) if valid_steps is None else valid_steps)
    valid = np.broadcast_to(valid, values.shape)
    moments = [
        (np.var(array[valid], dtype=np.float64), np.mean(array[valid], dtype=np.float64), valid.sum())
        for array in (targets, targets - values)
    ]
    variances, means, counts = np.moveaxis(group.gather(np.array(moments)), -1, 0)  # each [R, 2]
    weights = counts / counts.sum(axis=0)
    between = np.square(means - (weights * means).sum(axis=0))
    total, unexplained = (weights * (variances + between)).sum(axis=0).tolist()
    return 1 - unexplained / total if total > 0 else float("nan")


def last_steps(valid_steps: np.ndarray, steps: int) -> np.ndarray:
    """Mask of the last valid step of each environment.

    Args:
        valid_steps: [N], number of valid steps of each environment.
        steps: T.

    Returns:
        Bool [T, N].
    """
    mask: np.ndarray = np.arange(1, steps + 1)[:, None] == valid_steps
    return mask


def merge_moments(
    moments: RunningMoments, by_env: np.ndarray, valid_steps: np.ndarray, group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Merge the moments of every environment into running ones, over all ranks in the order of environments.

    Args:
        by_env: [N, 2, size], mean and sum of squared deviations of each environment.
        valid_steps: [N], number of samples of each environment.
    """
    counts, parts = (np.concatenate(list(group.gather(array))) for array in (valid_steps, by_env))
    for count, (mean, m2) in zip(counts.tolist(), parts, strict=True):
        moments.merge(count, mean, m2)


class RewardNormalizer:
    """Divides rewards by the running standard deviation of the discounted return, and clips them.

    Attributes:
        moments: of the discounted return.
        discounted_return: [N], of the episodes in progress.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self.moments = RunningMoments(1)
        self.discounted_return = np.zeros(num_envs)

    def normalize(
        self, rewards: np.ndarray, ended: np.ndarray, valid_steps: np.ndarray, group: ProcessGroup = SINGLE_PROCESS
    ) -> np.ndarray:
        """Update the statistics with a rollout, and normalize its rewards.

        Args:
            rewards: [T, N].
            ended: [T, N] bool, whether an episode ended with the step.
            valid_steps: [N].

        Returns:
            [T, N], clipped to ± CLIP.
        """
        returns = discounted_returns(rewards, ended, self.discounted_return, self._gamma)
        last, columns = valid_steps - 1, np.arange(rewards.shape[1])
        self.discounted_return = np.where(ended[last, columns], 0.0, returns[last, columns])
        by_env = np.array([column_moments(returns[:steps, n : n + 1]) for n, steps in enumerate(valid_steps)])
        merge_moments(self.moments, by_env, valid_steps, group)
        scaled: np.ndarray = np.clip(rewards / self.moments.std, -CLIP, CLIP)
        return scaled
