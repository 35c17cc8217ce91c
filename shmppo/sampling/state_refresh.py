"""Recompute the stored recurrent states with the current weights, between two epochs (--refresh-states).

The recurrent core processes the observations of the rollout again, from the state at step 0. It uses the same inference
batches as in acting, so the result does not depend on which process refreshes which environments.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.minibatches import cut_sequences
from shmppo.sampling.actor import Actor
from shmppo.spaces.distributions import Distribution


class StateRefresh:
    """Refreshes the stored states of the environments low … high − 1."""

    def __init__(
        self,
        config: TrainConfig,
        distribution: Distribution,
        model: ActorCritic,
        buffers: SharedBuffers,
        *,
        low: int,
        high: int,
        progress: np.ndarray,
    ) -> None:
        """Create the refresh of a range of environments. It allocates nothing before the first refresh.

        Args:
            config: of the run.
            distribution: of the actions.
            model: the network that learns. Each refresh copies its weights.
            buffers: the shared buffers.
            low: index of the first environment.
            high: index after the last environment.
            progress: [2], row of this process in `Control.progress`.
        """
        self._config, self._distribution, self._model = config, distribution, model
        self._published, self._rollout = buffers.published, buffers.rollout
        self._own = slice(low, high)
        self._progress = progress

    @cached_property
    def _obs(self) -> list[np.ndarray]:
        """The observations of one step, [own, …] per leaf."""
        return [np.zeros_like(leaf[0, self._own]) for leaf in self._rollout.obs]

    @cached_property
    def _actor(self) -> Actor:
        """The actor that recomputes the states. Most runs have no refresh, so it is created at the first one."""
        return Actor(self._config, self._model, self._distribution, self._obs, low=self._own.start)

    @torch.inference_mode()
    def refresh(self) -> None:
        """Write `Rollout.sequence_state` and `Rollout.state_drift` of the own environments.

        States at step 0 do not change. Nothing is written before all states are computed, so that a worker that
        replaces a failed one measures the drift from the same states.
        """
        actor, rollout, own = self._actor, self._rollout, self._own
        actor.load(self._published.obs_mean, self._published.obs_scale)
        first = rollout.first[:, own]
        due: dict[int, list[tuple[int, int]]] = defaultdict(list)  # step → (environment in the range, slot) to store
        for start, i, _, slot in cut_sequences(first, self._config.sequence_steps).tolist():
            if start > 0 and slot >= 0:
                due[start - self._config.burn_in].append((i, slot))
        refreshed: list[tuple[int, int, np.ndarray]] = []  # slot, environment, state [S]
        actor.states[:] = rollout.sequence_state[0, own]
        last = max(due, default=-1)
        for t in range(last + 1):
            actor.states[first[t]] = 0.0
            for i, slot in due.get(t, ()):
                refreshed.append((slot, own.start + i, actor.states[i].copy()))
            if t == last:
                break
            for obs, column in zip(self._obs, rollout.obs, strict=True):
                obs[:] = column[t, own]
            actor.advance()
            self._progress[1] += 1
        self._store(refreshed)

    def _store(self, refreshed: list[tuple[int, int, np.ndarray]]) -> None:
        """Replace stored states, and write the sum of their squared changes.

        Args:
            refreshed: (slot, environment, state [S]) of each.
        """
        stored, drift = self._rollout.sequence_state, self._rollout.state_drift
        drift[self._own] = 0.0
        for slot, n, state in refreshed:
            drift[n] += float(np.square((state - stored[slot, n]).astype(np.float64)).sum()), state.size
        for slot, n, state in refreshed:
            stored[slot, n] = state
