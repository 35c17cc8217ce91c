"""The network and its gradients, computed by the kernels. The axes are those of `shmppo.ppo.gradients`."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.models.native import NativeNetwork
from shmppo.models.native_layers import TorchPart
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.torch_gradients import StoredObservations, write_gradients
from shmppo.spaces.normalization import leaf_statistics


class NativeGradients:
    """A `GradientNetwork` of the kernels. Its memory grows with the largest batch."""

    one_by_one: bool
    """Whether a batch must be one shard, because the results of its rows depend on the others."""

    def __init__(self, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> None:
        self._model, self._gradients = model, buffers.shard_results.gradients
        self._bf16 = config.autocast == "bf16"
        self._obs = [leaf.reshape(math.prod(leaf.shape[:2]), *leaf.shape[2:]) for leaf in buffers.rollout.obs]
        published = buffers.published
        self._statistics = leaf_statistics(
            model.observation.normalized_slices, published.obs_mean, published.obs_scale, config.normalize_obs
        )
        self.one_by_one = model.has_torch_encoders
        self._observations = StoredObservations(config, model, buffers)
        self._views = [
            dict(zip(model.parameters(), parameter_views(shard, model), strict=True))
            for shard in (torch.from_numpy(self._gradients) if self.one_by_one else ())
        ]
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
        """Read the current weights."""
        self._network.load()

    def forward(self, active: np.ndarray, index: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute the policy parameters [R, O], the values [R], and for a loss of features those of the actor [R, F].

        The next call overwrites them.

        Args:
            active: int32 [L], number of sequences that have a step t.
            index: int64 [R], the index of each row in arrays [T·N, …].
            state: [J, S], before the first step.
        """
        needed = len(index), len(state)
        capacity = tuple(n * 5 // 4 if n > most else most for n, most in zip(needed, self._capacity, strict=True))
        if capacity != self._capacity:
            self._allocate(capacity)
            self.load()
        self._network.state[: len(state)] = state
        self._encoded: list[tuple[TorchPart, Tensor]] = []
        if self.one_by_one:
            obs = self._observations.at(torch.tensor(index))
            with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
                self._encoded = [(part, part.compute(obs).float()) for part in self._network.builder.torch_parts]
        for part, output in self._encoded:
            part.out[: len(index)] = output.detach().numpy()
        self._network.forward(active, index)
        return tuple(output[: len(index)] for output, _ in self._network.outputs)

    def backward(self, shards: range, order: np.ndarray, bounds: np.ndarray, *by_outputs: np.ndarray) -> None:
        """Write the gradients of shards, given the derivatives of the loss with respect to the last outputs.

        Args:
            shards: the shards of the batch.
            order: int64 [R], the rows of the first shard in ascending order, then those of the next one.
            bounds: int64 [shards + 1], where the rows of each shard begin in `order`.
            by_outputs: one derivative for each of them, of the same shape.
        """
        for (_, derivatives), given in zip(self._network.outputs, by_outputs, strict=True):
            derivatives[: len(given)] = given
        self._network.backward(shards, order, bounds)
        trained = [(part, output) for part, output in self._encoded if output.requires_grad]
        if trained:
            parts, encoded = zip(*trained, strict=True)
            views = self._views[shards.start]
            parameters = [parameter for part in parts for parameter in part.encoder.parameters()]
            by_encoded = [part.by_out[: len(encoded[0])] for part in parts]
            write_gradients(encoded, by_encoded, parameters, [views[parameter] for parameter in parameters])
