"""Recompute the stored recurrent states with the current weights, between two epochs (--refresh-states)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.parallel.shared_buffers import Rollout
from shmppo.ppo.minibatches import cut_sequences
from shmppo.sampling.actor import Actor


def refresh_states(
    config: TrainConfig, actor: Actor, obs: Sequence[np.ndarray], rollout: Rollout, progress: np.ndarray
) -> None:
    """Process the observations of a rollout again from the state at step 0, and replace its later stored states.

    The inference batches are those of acting, so the result does not depend on which process refreshes which
    environments. Nothing is written before all states are computed, so that a worker that replaces a failed one
    measures the drift from the same states. Call it in inference mode.

    Args:
        actor: has loaded the current weights. Its states are overwritten.
        obs: [own, …] per leaf, the arrays that the actor reads. They are overwritten.
        rollout: the columns of the own environments. `sequence_state` and `state_drift` are written.
        progress: [1], increased by 1 for each step.
    """
    due: dict[int, list[tuple[int, int]]] = defaultdict(list)  # step → (environment in the range, slot) to store
    for start, i, _, slot in cut_sequences(rollout.first, config.sequence_steps).tolist():
        if start > 0 and slot >= 0:
            due[start - config.burn_in].append((i, slot))
    refreshed: list[tuple[int, int, np.ndarray]] = []  # slot, environment in the range, state [S]
    actor.states[:] = rollout.sequence_state[0]
    last = max(due, default=-1)
    for t in range(last + 1):
        actor.states[rollout.first[t]] = 0.0
        refreshed += [(slot, i, actor.states[i].copy()) for i, slot in due.get(t, ())]
        if t < last:
            for current, column in zip(obs, rollout.obs, strict=True):
                current[:] = column[t]
            actor.advance()
            progress += 1
    rollout.state_drift[:] = 0.0
    for slot, i, state in refreshed:
        change = (state - rollout.sequence_state[slot, i]).astype(np.float64)
        rollout.state_drift[i] += float(np.square(change).sum()), state.size
    for slot, i, state in refreshed:
        rollout.sequence_state[slot, i] = state
