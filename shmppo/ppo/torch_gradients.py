"""Gradients that torch computes by autograd: those of the network, on a GPU or where the kernels cannot, and those of
the auxiliary loss."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.models.user_module import AuxiliaryLoss
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


class TorchNetwork:
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
    def of_buffers(cls, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> TorchNetwork:
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
        outputs = (params, values) if self._model.auxiliary is None else (params, values, features[0])
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


class AuxiliaryGradients:
    """Computes the auxiliary loss with the current weights of its module."""

    def __init__(self, config: TrainConfig, module: AuxiliaryLoss, model: ActorCritic, buffers: SharedBuffers) -> None:
        """Create views. module: the one of `model`."""
        self._module, self._parameters = module, list(module.parameters())
        begin = len(model.network_parameters)
        shards = torch.from_numpy(buffers.shard_results.gradients)
        self._gradients = [parameter_views(shard, model)[begin:] for shard in shards]
        inputs = GradientInputs.of(buffers)
        slices = model.observation.normalized_slices
        statistics = leaf_statistics(slices, inputs.obs_mean, inputs.obs_scale, config.normalize_obs)
        count = len(model.observation.network_leaves)  # without an action mask, which is the last leaf
        self._obs = list(zip(inputs.obs[:count], statistics[:count], strict=True))

    def compute(
        self, shard: int, features: np.ndarray, index: np.ndarray, actions: np.ndarray, returns: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Write the gradients of the module's parameters for a shard.

        Args:
            features: [R, F], of the actor, at the steps of the shard that count.
            index: int64 [R], the index of each step in arrays [T·N, …].
            actions: [R, A].
            returns: [R], value targets.
            steps: valid steps of the minibatch.

        Returns:
            (losses [R], the derivatives of the loss of the minibatch with respect to the features [R, F]).
        """
        if not len(index):  # the minibatch has fewer sequences than shards
            for view in self._gradients[shard]:
                view.zero_()
            return returns, features  # both are empty
        # These tensors have memory of torch, which is aligned in the same way in every process.
        rows, seen = torch.tensor(index), torch.tensor(features, requires_grad=True)
        obs = [normalize_leaf(leaf[rows], statistics) for leaf, statistics in self._obs]
        losses = self._module(seen, obs, torch.tensor(actions), torch.tensor(returns))
        total = losses.sum() * (1 / steps)
        by_features, *gradients = torch.autograd.grad(total, [seen, *self._parameters], materialize_grads=True)
        for view, gradient in zip(self._gradients[shard], gradients, strict=True):
            view.copy_(gradient)
        return losses.detach().float().numpy(), by_features.numpy()
