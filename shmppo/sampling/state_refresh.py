"""Stored states brought up to date: each row's initial state as the present weights would have it (--refresh-states).

A column's steps are gone through again from the state that the rollout began with, with the same calls as in acting: on
tiles in which each environment has its row. So it does not matter which process refreshes which columns.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
import torch

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.distributions import Distribution
from shmppo.models.inference import ActingNetwork, InferenceSlice, inference_batches
from shmppo.models.normalization import leaf_statistics, normalize_leaf
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.minibatches import cut_sequences


class StateRefresh:
    """Refreshes the stored states of the columns low … high − 1."""

    def __init__(
        self,
        config: TrainConfig,
        distribution: Distribution,
        model: ActorCritic,
        arena: SharedBuffers,
        *,
        low: int,
        high: int,
        progress: np.ndarray,
    ) -> None:
        """progress: [2], this range's row of the control table (layout.PROGRESS)."""
        self._config = config
        self._arena = arena
        self._progress = progress
        self._own = slice(low, high)
        self._model = model
        self._distribution = distribution
        spec = model.observation
        self._obs = [arena.tensor(leaf.field)[:, self._own] for leaf in spec.leaves]
        self._statistics = leaf_statistics(
            spec.normalized, arena.tensor("obs_mean"), arena.tensor("obs_scale"), config.normalize_obs
        )

    @cached_property
    def _acting(self) -> tuple[list[InferenceSlice], ActingNetwork]:
        """The calls and their network, made at the first refresh: most runs have none."""
        own = self._own
        tiles, rows = inference_batches(
            self._model, self._distribution, own.start, own.stop, self._config.inference_rows
        )
        return tiles, ActingNetwork(self._model, self._distribution, tiles=1, rows=rows)

    @torch.inference_mode()
    def refresh(self) -> None:
        """Write "sequence_state" and "state_drift" of the own columns, but the states at step 0, which were carried over."""
        tiles, network = self._acting
        network.load()
        first = self._arena.array("first")[:, self._own]
        rows = cut_sequences(first, self._config.sequence_steps)
        self._arena.array("state_drift")[self._own] = 0.0
        for tile in tiles:
            due: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by step: column and slot
            for start, i, _, slot in rows.tolist():
                if start > 0 and slot >= 0 and tile.own.start <= i < tile.own.stop:
                    due[start - self._config.burn_in].append((i, slot))
            self._go_through(tile, torch.from_numpy(first[:, tile.own]), due)

    def _go_through(self, tile: InferenceSlice, first: torch.Tensor, due: dict[int, list[tuple[int, int]]]) -> None:
        """One tile's columns, up to the last state that is due; first: [T, own of the tile]."""
        network, carried = self._acting[1], self._arena.tensor("sequence_state")[0, self._own]
        network.state.zero_()
        for leaf in network.obs:
            leaf.zero_()
        states = network.state[0, tile.rows]
        states.copy_(carried[tile.own])
        last = max(due, default=-1)
        for t in range(last + 1):
            states.masked_fill_(first[t].unsqueeze(-1), 0.0)
            for i, slot in due.get(t, ()):
                self._keep(i, slot, states[i - tile.own.start])
            if t == last:
                break
            for obs, statistics, seen in zip(self._obs, self._statistics, network.obs, strict=True):
                normalize_leaf(obs[t, tile.own], statistics, out=seen[0, tile.rows])
            network.step(0)
            self._progress[1] += 1

    def _keep(self, i: int, slot: int, state: torch.Tensor) -> None:
        """Put a state [S] in the place of the stored one, and add up by how much it differs."""
        n = self._own.start + i
        stored = self._arena.tensor("sequence_state")[slot, n]
        drift = self._arena.array("state_drift")[n]
        drift[0] += float((state - stored).double().square().sum())
        drift[1] += stored.numel()
        stored.copy_(state)
