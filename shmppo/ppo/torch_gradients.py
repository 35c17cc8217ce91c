"""Gradients of the network that torch computes by autograd, on a GPU or where the kernels cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.spaces.normalization import leaf_statistics, normalize_leaf


class GradientInputs(NamedTuple):
    """The tensors that the network reads, on one device. The first two axes of the rollout are flattened."""

    obs: tuple[Tensor, ...]
    """[T·N, …] per leaf, as stored."""
    obs_mean: Tensor
    """[D]"""
    obs_scale: Tensor
    """[D], 1 / standard deviation."""
    weights: Tensor
    """[P]"""

    @classmethod
    def of(cls, buffers: SharedBuffers) -> GradientInputs:
        """Return views of the shared memory."""
        rollout, published = buffers.rollout, buffers.published
        return cls(
            obs=tuple(torch.from_numpy(leaf).flatten(0, 1) for leaf in rollout.obs),
            obs_mean=torch.from_numpy(published.obs_mean),
            obs_scale=torch.from_numpy(published.obs_scale),
            weights=torch.from_numpy(published.weights),
        )


class TorchGradients:
    """An actor-critic whose sequences are padded to the longest one. It has the interface `GradientNetwork`."""

    one_by_one = True

    def __init__(self, config: TrainConfig, model: ActorCritic, inputs: GradientInputs, gradients: Tensor) -> None:
        """Create views.

        Args:
            model: on the device of `inputs`.
            gradients: [G, P], where to write gradients, on the same device.
        """
        self._model, self._inputs = model, inputs
        self._device = inputs.weights.device
        self._bf16 = config.autocast == "bf16"
        self._parameters = model.network_parameters
        self._gradients = [parameter_views(shard, model)[: len(self._parameters)] for shard in gradients]
        self._statistics = leaf_statistics(
            model.observation.normalized_slices, inputs.obs_mean, inputs.obs_scale, config.normalize_obs
        )

    @classmethod
    def of_buffers(cls, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> TorchGradients:
        """Return a network that reads and writes the shared memory."""
        gradients = torch.from_numpy(buffers.shard_results.gradients)
        return cls(config, model, GradientInputs.of(buffers), gradients)

    def load(self) -> None:
        """Nothing to do: the model's parameters are views of the weights."""

    def forward(self, active: np.ndarray, index: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `GradientNetwork`. --autocast bf16 applies to the matrix products of the trunks."""
        rows = np.arange(active[0])
        valid = rows < active[:, np.newaxis]  # [L, J]
        begin = np.cumsum(active) - active
        chosen = self._to_device(index[np.where(valid, begin[:, np.newaxis] + rows, 0)])  # padding reads any step
        obs: Sequence[Tensor] = [
            normalize_leaf(leaf[chosen], statistics)
            for leaf, statistics in zip(self._inputs.obs, self._statistics, strict=True)
        ]
        with torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else contextlib.nullcontext():
            features, _ = self._model.features(obs, self._to_device(state))
        features = [part.float() for part in features]
        params, values = self._model.heads(features, obs)
        mask = self._to_device(valid)
        outputs = (params, values, features[0]) if self._model.feature_losses else (params, values)
        self._outputs = [output[mask] for output in outputs]
        return tuple(output.detach().cpu().numpy() for output in self._outputs)

    def backward(self, shards: range, order: np.ndarray, bounds: np.ndarray, *by_outputs: np.ndarray) -> None:
        """See `GradientNetwork`."""
        # This scalar has the given derivatives. Passing them to autograd as arguments would make torch import sympy,
        # which needs 60 MB per process.
        pairs = zip(self._outputs, by_outputs, strict=True)
        loss = torch.stack([(output * self._to_device(by_output)).sum() for output, by_output in pairs]).sum()
        # A parameter of --network may matter only from the second step of a sequence on.
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_copy_(self._gradients[shards.start], list(gradients))

    def _to_device(self, array: np.ndarray) -> Tensor:
        """Copy to the device. Memory of torch is aligned in the same way in every process, that of NumPy is not."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, copy=True)
