"""Leave idle steps out of a rollout, so that learning sees only steps at which a column acts."""

from __future__ import annotations

import numpy as np

from shmppo.parallel.shared_buffers import Rollout


def leave_out_idle_steps(rollout: Rollout, params: np.ndarray, acted: np.ndarray) -> None:
    """Move the steps at which each row acted to the front of its column, and write their numbers to `valid_steps`.

    The reward of such a step is the sum of the rewards until the row acts again or its episode ends. The step ends an
    episode if one ends before the row acts again. If an episode goes on at the end of the rollout, the last step is
    bootstrapped with the value of what the column sees then. Rewards before the first step of a row are left out: they
    belong to the rollout before.

    Args:
        rollout: the own columns. `joint_actions`, `joint_end`, and what is recorded of ended episodes stay in place.
        params: [T, own, P], policy parameters.
        acted: bool [T, own], whether each row acted at each step.
    """
    total = len(acted)
    times = np.arange(total)
    for n in np.flatnonzero(~acted.all(axis=0)).tolist():
        steps = np.flatnonzero(acted[:, n])
        count = rollout.valid_steps[n] = len(steps)
        for array in (*rollout.obs, rollout.actions, rollout.value, rollout.first, params):
            array[:count, n] = array[steps, n]
        if count:
            ended = rollout.terminated[:, n] | rollout.truncated[:, n]
            before = np.cumsum(ended) - ended  # ends before each step
            over = before[steps[0] :] > np.repeat(before[steps], np.diff(np.append(steps, total)))
            for array in (rollout.reward, rollout.terminated, rollout.truncated):
                array[steps[0] :, n][over] = 0
            cut = np.maximum.reduceat(np.where(rollout.truncated[:, n], times, -1), steps)
            last = np.append(steps[1:], total) - 1
            rollout.bootstrap[:count, n] = rollout.bootstrap[np.where(cut >= 0, cut, last), n]
            rollout.reward[:count, n] = np.add.reduceat(rollout.reward[:, n], steps)
            for flags in (rollout.terminated, rollout.truncated):
                flags[:count, n] = np.logical_or.reduceat(flags[:, n], steps)
        for array in (rollout.reward, rollout.first, rollout.terminated, rollout.truncated):
            array[count:, n] = 0
