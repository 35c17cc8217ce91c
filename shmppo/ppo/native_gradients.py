"""The network and its gradients, computed by the kernels."""

from __future__ import annotations

import math

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.native import NativeNetwork
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.spaces.normalization import leaf_statistics


class NativeGradients:
    """A `GradientNetwork` of the kernels. Its memory grows with the largest batch."""

    one_by_one = False

    def __init__(self, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> None:
        self._model, self._gradients = model, buffers.shard_results.gradients
        self._bf16 = config.autocast == "bf16"
        self._obs = [leaf.reshape(math.prod(leaf.shape[:2]), *leaf.shape[2:]) for leaf in buffers.rollout.obs]
        published = buffers.published
        self._statistics = leaf_statistics(
            model.observation.normalized_slices, published.obs_mean, published.obs_scale, config.normalize_obs
        )
        self._allocate((1, 1))

    def _allocate(self, capacity: tuple[int, ...]) -> None:
        """Allocate the memory. capacity: most rows and sequences of a batch."""
        self._capacity, (rows, sequences) = capacity, capacity
        self._network = NativeNetwork(
            self._model,
            self._obs,
            self._statistics,
            row_count=rows,
            sequences=sequences,
            gradients=self._gradients,
            bf16=self._bf16,
        )

    def load(self) -> None:
        self._network.load()

    def forward(self, active: np.ndarray, index: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, ...]:
        needed = len(index), len(state)
        capacity = tuple(n * 5 // 4 if n > most else most for n, most in zip(needed, self._capacity, strict=True))
        if capacity != self._capacity:
            self._allocate(capacity)
            self.load()
        self._network.state[: len(state)] = state
        self._network.forward(active, index)
        return tuple(output[: len(index)] for output, _ in self._network.outputs)

    def backward(self, shards: range, order: np.ndarray, bounds: np.ndarray, *by_outputs: np.ndarray) -> None:
        for (_, derivatives), given in zip(self._network.outputs, by_outputs, strict=True):
            derivatives[: len(given)] = given
        self._network.backward(shards, order, bounds)
