"""Leave idle steps out of a rollout, so that learning sees only steps at which a column acts.

If a column waits at the end of a rollout while its episode goes on, its last step is held back: the next rollout
contains it, with the rewards until the column acts again. `Carry.held` contains, for each column, whether there is such
a step, its `first`, value, reward, action, and policy parameters, and the recurrent state before it.
"""

from __future__ import annotations

import numpy as np

from shmppo.parallel.shared_buffers import Carry, Rollout


def held_starts(carry: Carry, own: slice, state_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how the held steps of the own columns begin.

    Returns:
        (whether there is a held step, bool [own]; whether it begins an episode, bool [own]; the recurrent state before
        it, float32 [own, S]).
    """
    held = carry.held[own]
    return held[:, 0] > 0, held[:, 1] > 0, held[:, held.shape[1] - state_size :].astype(np.float32)


def insert_held_steps(rollout: Rollout, params: np.ndarray, acted: np.ndarray, carry: Carry, own: slice) -> None:
    """Insert the steps that the rollout before has held back. They become step 0, at which their columns are idle.

    Args:
        carry: contains the steps.
        own: the own columns of the carry. For the other arguments, see `leave_out_idle_steps`.
    """
    held, actions = carry.held[own], rollout.actions.shape[2]
    rows = held[:, 0] > 0
    acted[0, rows] = True
    for leaf, leaf_held in zip(rollout.obs, carry.held_obs, strict=True):
        leaf[0, rows] = leaf_held[own][rows]
    rollout.first[0, rows], rollout.value[0, rows] = held[rows, 1], held[rows, 2]
    rollout.reward[0, rows] += held[rows, 3]
    rollout.actions[0, rows] = held[rows, 4 : 4 + actions]
    params[0, rows] = held[rows, 4 + actions :][:, : params.shape[2]]


def hold_back_steps(
    rollout: Rollout,
    params: np.ndarray,
    acted: np.ndarray,
    states: np.ndarray,
    waits: np.ndarray,
    carry: Carry,
    own: slice,
) -> None:
    """Move the last step of each column that waits into the carry.

    Args:
        states: [own, S], recurrent states before the last step of each column.
        waits: bool [own], whether a column is idle after the rollout while its episode goes on.
        carry: written. For the other arguments, see `insert_held_steps`.
    """
    held = carry.held[own]
    for array in (carry.held, *carry.held_obs):  # so that a checkpoint has nothing of earlier rollouts
        array[own] = 0
    for n in np.flatnonzero(waits & acted.any(axis=0)).tolist():
        t = int(np.flatnonzero(acted[:, n])[-1])
        numbers = 1, rollout.first[t, n], rollout.value[t, n], rollout.reward[t:, n].sum()
        held[n] = np.concatenate([numbers, rollout.actions[t, n], params[t, n], states[n]])
        for leaf, leaf_held in zip(rollout.obs, carry.held_obs, strict=True):
            leaf_held[own][n] = leaf[t, n]
        acted[t, n], rollout.reward[t:, n] = False, 0
        rollout.bootstrap[-1, n] = rollout.value[t, n]  # if the step before it belongs to the same episode


def leave_out_idle_steps(rollout: Rollout, params: np.ndarray, acted: np.ndarray) -> None:
    """Move the steps at which each column acted to its front, and write their numbers to `valid_steps`.

    The reward of such a step is the sum of the rewards until the column acts again or its episode ends. The step ends
    an episode if one ends before the column acts again. If an episode goes on at the end of the rollout, the last step
    is bootstrapped with the value of what the column sees then, or with that of the step that is held back. Rewards
    before the first step of a column are those after the end of an episode, and are left out.

    Args:
        rollout: the own columns. `joint_actions`, `joint_end`, and what is recorded of ended episodes stay in place.
        params: [T, own, P], policy parameters.
        acted: bool [T, own], whether each column acted at each step.
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
