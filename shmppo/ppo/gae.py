"""Advantages, discounted returns, normalization of rewards, and explained variance of one rollout.

Axes: T steps, N environments, R ranks.
"""

from __future__ import annotations

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import Rollout
from shmppo.spaces.normalization import CLIP, RunningMoments, column_moments


def compute_advantages(
    config: TrainConfig, rollout: Rollout, normalizer: RewardNormalizer, group: ProcessGroup
) -> np.ndarray:
    """Clip and scale the rewards of a rollout as configured, and compute its advantages, float32 [T, N].

    normalizer: scales rewards with --normalize-reward. The rollout is added to its statistics.
    """
    rewards, terminated, truncated = rollout.reward, rollout.terminated, rollout.truncated
    ended, valid_steps = terminated | truncated, rollout.valid_steps
    if config.clip_reward is not None:
        rewards = np.clip(rewards, -config.clip_reward, config.clip_reward)
    # The result of a failed step (length 0) is unknown, and a reset step (RESET_STEP) has none: δ must be 0.
    failed = ended & (rollout.ended_length <= 0) & (not config.has_idle_steps)
    if config.normalize_reward:
        counted = (np.arange(len(rewards))[:, np.newaxis] < valid_steps) & ~failed
        rewards = normalizer.normalize(rewards, rollout.first, valid_steps, counted, group)
    rewards, terminated = np.where(failed, rollout.value, rewards), terminated | failed
    if config.truncation_is_termination:
        terminated = ended
    return generalized_advantages(
        rewards=rewards,
        values=rollout.value,
        bootstraps=rollout.bootstrap,
        terminated=terminated,
        truncated=truncated | (np.arange(1, len(rewards) + 1)[:, np.newaxis] == valid_steps),
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )


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
    - 0 if the step is terminated, even if it is truncated as well;
    - `bootstraps[t]` if the step is truncated, and for t = T − 1: the value of the observation after the step, with the
      recurrent state after the step;
    - V[t+1] otherwise.

    Args:
        rewards: [T, N].
        values: [T, N], V.
        bootstraps: [T, N]. Elements that the list above does not name are ignored.
        terminated: bool [T, N].
        truncated: bool [T, N].
        gae_lambda: λ.

    Returns:
        Advantages A, float32 [T, N]. The value targets are A + V.
    """
    next_values = np.where(truncated, bootstraps, np.roll(values, -1, axis=0))
    next_values[-1] = bootstraps[-1]
    next_values[terminated] = 0.0
    advantages: np.ndarray = rewards + gamma * next_values.astype(np.float64) - values  # first δ, after the loop A
    decay = np.where(terminated | truncated, 0.0, gamma * gae_lambda)
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages.astype(np.float32)


def discounted_returns(rewards: np.ndarray, first: np.ndarray, start: np.ndarray, gamma: float) -> np.ndarray:
    """Compute the running discounted return. Rewards are divided by its standard deviation.

        R[t] = r[t]              if an episode begins with step t
        R[t] = r[t] + γ·R[t−1]   otherwise

    Args:
        rewards: [T, N].
        first: bool [T, N], whether an episode begins with step t.
        start: [N], R of the step before the first one.

    Returns:
        R, float64 [T, N]. `start` of the next rollout is R[T − 1].
    """
    returns = rewards.astype(np.float64)
    decay = np.where(first, 0.0, gamma)
    returns[0] += decay[0] * start
    for t in range(1, len(rewards)):
        returns[t] += decay[t] * returns[t - 1]
    return returns


def explained_variance(values: np.ndarray, targets: np.ndarray, valid_steps: np.ndarray, group: ProcessGroup) -> float:
    """Compute the explained variance of the critic over all ranks: 1 − Var(target − value) / Var(target).

    Args:
        values: [T, N].
        targets: [T, N], value targets.
        valid_steps: [N], number of valid steps of each environment.

    Returns:
        1 for a perfect critic; NaN if the targets do not vary.
    """
    valid = np.arange(len(values))[:, None] < valid_steps
    moments = [
        (np.var(array[valid], dtype=np.float64), np.mean(array[valid], dtype=np.float64), valid.sum())
        for array in (targets, targets - values)
    ]
    variances, means, counts = np.moveaxis(group.gather(np.array(moments)), -1, 0)  # each [R, 2]
    weights = counts / counts.sum(axis=0)
    between = np.square(means - (weights * means).sum(axis=0))
    total, unexplained = (weights * (variances + between)).sum(axis=0).tolist()
    return 1 - unexplained / total if total > 0 else float("nan")


def merge_over_ranks(moments: RunningMoments, by_env: np.ndarray, valid_steps: np.ndarray, group: ProcessGroup) -> None:
    """Merge the moments of every environment of all ranks into running moments, in the order of environments.

    Args:
        moments: updated in place.
        by_env: [N, 2, size], mean and sum of squared deviations of each environment.
        valid_steps: [N], number of samples of each environment.
    """
    moments.merge(*(np.concatenate(list(group.gather(array))) for array in (valid_steps, by_env)))


class RewardNormalizer:
    """Divides rewards by the running standard deviation of the discounted return, and clips them.

    Attributes:
        moments: running moments of the discounted return.
        discounted_return: [N], discounted return at the last valid step of each environment.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        """Create statistics without samples."""
        self._gamma = gamma
        self.moments = RunningMoments(1)
        self.discounted_return = np.zeros(num_envs)

    def normalize(
        self, rewards: np.ndarray, first: np.ndarray, valid_steps: np.ndarray, counted: np.ndarray, group: ProcessGroup
    ) -> np.ndarray:
        """Update the statistics with a rollout, and normalize its rewards.

        Args:
            rewards: [T, N].
            first: bool [T, N], whether an episode began with the step.
            valid_steps: [N], number of valid steps of each environment.
            counted: bool [T, N], whether the step is valid and has an outcome, so that it counts in the statistics.

        Returns:
            Rewards divided by the standard deviation and clipped to ± CLIP, float64 [T, N].
        """
        returns = discounted_returns(rewards, first, self.discounted_return, self._gamma)
        last = returns[valid_steps - 1, np.arange(rewards.shape[1])]
        self.discounted_return = np.where(valid_steps == 0, self.discounted_return, last)
        if counted.all():
            by_env = np.stack(column_moments(returns), axis=1)[..., np.newaxis]
        else:
            by_env = np.array([column_moments(returns[steps, n : n + 1]) for n, steps in enumerate(counted.T)])
        merge_over_ranks(self.moments, by_env, counted.sum(axis=0), group)
        scaled: np.ndarray = np.clip(rewards / self.moments.std, -CLIP, CLIP)
        return scaled
