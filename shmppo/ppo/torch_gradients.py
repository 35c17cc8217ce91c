"""Gradients of the network that torch computes by autograd, where the kernels cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.spaces.normalization import leaf_statistics, normalize_leaf


class StoredObservations:
    """The observations of a rollout, from which the network's inputs are read."""

    def __init__(
        self,
        config: TrainConfig,
        model: ActorCritic,
        buffers: SharedBuffers,
        read: Callable[[str], Tensor] | None = None,
    ) -> None:
        """Create views.

        read: returns a shared array by its path, on another device. None: views of the shared memory.
        """
        read = read or (lambda path: torch.from_numpy(buffers.arrays[path]))
        paths = [path for path in buffers.arrays if path.split("/")[0] == "rollout.obs"]
        self._leaves = [read(path).flatten(0, 1) for path in paths]
        statistics = read("published.obs_mean"), read("published.obs_scale")
        self._statistics = leaf_statistics(model.observation.normalized_slices, *statistics, config.normalize_obs)

    def at(self, index: Tensor) -> list[Tensor]:
        """Return the inputs [*index.shape, …] per leaf. index: int64, the index of each step in arrays [T·N, …]."""
        pairs = zip(self._leaves, self._statistics, strict=True)
        return [normalize_leaf(leaf[index], statistics) for leaf, statistics in pairs]


class TorchGradients:
    """An actor-critic whose sequences are padded to the longest one. It has the interface `GradientNetwork`."""

    one_by_one = True

    def __init__(self, config: TrainConfig, model: ActorCritic, buffers: SharedBuffers) -> None:
        """Create views of the shared memory."""
        self._model, self._autocast = model, config.autocast
        self._observations = StoredObservations(config, model, buffers)
        self._parameters = model.network_parameters
        gradients = torch.from_numpy(buffers.shard_results.gradients)
        self._gradients = [parameter_views(shard, model)[: len(self._parameters)] for shard in gradients]

    def load(self) -> None:
        """Nothing to do: the model's parameters are views of the weights."""

    def forward(self, active: np.ndarray, index: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `GradientNetwork`."""
        rows = np.arange(active[0])
        valid = rows < active[:, np.newaxis]  # [L, J]
        begin = np.cumsum(active) - active
        chosen = torch.tensor(index[np.where(valid, begin[:, np.newaxis] + rows, 0)])  # padding reads any step
        # Memory of torch is aligned in the same way in every process, that of NumPy is not.
        initial, mask = torch.tensor(state), torch.tensor(valid)
        outputs = run_network(self._model, self._observations.at(chosen), initial, self._autocast)
        self._outputs = [output[mask] for output in outputs]
        return tuple(output.detach().numpy() for output in self._outputs)

    def backward(self, shards: range, order: np.ndarray, bounds: np.ndarray, *by_outputs: np.ndarray) -> None:
        """See `GradientNetwork`."""
        write_gradients(self._outputs, by_outputs, self._parameters, self._gradients[shards.start])


def write_gradients(
    outputs: Sequence[Tensor], by_outputs: Sequence[np.ndarray], parameters: Sequence[Tensor], views: Sequence[Tensor]
) -> None:
    """Write the gradients of parameters.

    Args:
        outputs: what torch has computed from them.
        by_outputs: the derivative of the loss with respect to each of them, of the same shape.
        views: where to write the gradient of each parameter.
    """
    # This scalar has the given derivatives. Passing them to autograd as arguments would make torch import sympy,
    # which needs 60 MB per process.
    pairs = zip(outputs, by_outputs, strict=True)
    loss = torch.stack([(output * torch.tensor(by_output)).sum() for output, by_output in pairs]).sum()
    # A parameter of --network may matter only from the second step of a sequence on.
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    with torch.no_grad():
        torch._foreach_copy_(list(views), list(gradients))


def run_network(model: ActorCritic, obs: Sequence[Tensor], state: Tensor, autocast: str) -> list[Tensor]:
    """Compute the network for L steps of J sequences.

    Args:
        obs: [L, J, …] per leaf, from `StoredObservations`.
        state: [J, S], before the first step.
        autocast: --autocast; bf16 applies to the matrix products of the trunks.

    Returns:
        The policy parameters [L, J, O], the values [L, J], and for losses of features those of the actor [L, J, F].
    """
    with torch.autocast(state.device.type, torch.bfloat16, enabled=autocast == "bf16"):
        features, _ = model.features(obs, state)
    features = [part.float() for part in features]
    return [*model.heads(features, obs), *([features[0]] if model.feature_losses else [])]
