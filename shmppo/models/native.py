"""The actor-critic, computed by the kernels: one call computes all layers forward, and one backward.

`NativeNetwork` computes the function of `ActorCritic` with its parameters, which are not copied but packed by `load`.
Torch computes encoders with other than linear layers; the caller writes their outputs before `NativeNetwork.forward`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.kernels import Batch, Layer, kernels, supported_variants
from shmppo.models.actor_critic import ActorCritic, Trunk
from shmppo.models.encoders import network_input
from shmppo.models.native_layers import LayerBuilder, Statistics
from shmppo.spaces.distributions import MASKED
from shmppo.utils.torch_utils import aligned_zeros


def why_not_native(model: ActorCritic) -> str | None:
    """Return why the kernels cannot compute a network, as the end of "because …". None: they can."""
    if not supported_variants():
        return "the kernels were not compiled; run `pip install -e .` with a C compiler"
    known = all(isinstance(trunk, Trunk) for trunk in model.trunk_list)
    return None if known else "the kernels cannot compute --network; use --kernel auto"


def uses_kernels(config: TrainConfig, model: ActorCritic) -> bool:
    """Return whether the kernels compute a network, perhaps except encoders (`ActorCritic.has_torch_encoders`)."""
    return config.kernel == "native" or (config.kernel == "auto" and why_not_native(model) is None)


def resolve_kernel(config: TrainConfig, model: ActorCritic) -> Literal["native", "torch"]:
    """Return what computes a network, "native" or "torch".

    Raises:
        ConfigError: if --kernel native cannot compute it.
    """
    if config.kernel == "native" and (reason := why_not_native(model)) is not None:
        raise ConfigError(f"--kernel native cannot be used, because {reason}")
    return "native" if uses_kernels(config, model) else "torch"


class NativeNetwork:
    """An actor-critic with memory for batches of a given size.

    Axes: R rows (the steps of all sequences, packed by time), J sequences, S state, P policy parameters.

    Attributes:
        state: [J, S], recurrent states before the first step.
        params: [R, P], policy parameters, an output.
        values: [R, 1], an output.
        by_params: [R, P], the derivative of the loss with respect to `params`, an input of `backward`.
        by_values: [R, 1], that with respect to `values`.
        layers, builder, kernels: the layers, what has made them, and the functions that compute them.
        outputs: `params`, `values` as [R], and for the `backward` of a loss of features, those of the actor [R, F],
            each with its derivative. `backward` overwrites that of the features.
    """

    def __init__(
        self,
        model: ActorCritic,
        obs: Sequence[np.ndarray],
        statistics: Statistics,
        *,
        row_count: int,
        sequences: int,
        state: np.ndarray | None = None,
        gradients: np.ndarray | None = None,
        bf16: bool = False,
        variant: str | None = None,
    ) -> None:
        """Allocate the memory.

        Args:
            model: the network whose parameters are used. They must not move afterwards.
            obs: [rows, …] per leaf, the stored observations that batches read.
            row_count: R at most.
            sequences: J at most.
            state: memory for `state`; batches of one step then update it. None: own memory, which is only read.
            gradients: float32 [G, P'], contiguous, where `backward` writes the gradients of the parameters. None: there
                is no `backward`.
            bf16: whether the matrix products of the trunks round their inputs to bfloat16.
            variant: of the kernels. None: the fastest one.
        """
        self._model, self._obs, self._gradients = model, obs, gradients
        self.kernels = kernels(variant)
        self.state = np.zeros((sequences, model.state_size), np.float32) if state is None else state
        self.params = np.zeros((row_count, model.params_size), np.float32)
        self.values = np.zeros((row_count, 1), np.float32)
        self.by_params, self.by_values = np.zeros_like(self.params), np.zeros_like(self.values)
        self._active = np.array([sequences], np.int32)
        self._one_step = self._packed(self._active)  # what `forward` computes without arguments
        self.builder = LayerBuilder(model, row_count, self.state, gradients)
        self._build(statistics, writes_state=state is not None, bf16=bf16)
        for layer in self.builder.layers:
            address = ctypes.addressof(layer)
            packed = self.kernels.packed_size(address)
            sizes = {"packed": packed, "memory": self.kernels.memory_size(address, row_count, sequences)}
            for name, size in sizes.items():
                memory = aligned_zeros(size).numpy()
                setattr(layer, name, memory.ctypes.data)
                self.builder.kept.append(memory)
        self.layers = (Layer * len(self.builder.layers))(*self.builder.layers)

    def _build(self, statistics: Statistics, writes_state: bool, bf16: bool) -> None:
        """Append all layers."""
        model, builder, features = self._model, self.builder, []
        begin, encoded = 0, None
        for trunk, seen in zip(cast("list[Trunk]", model.trunk_list), model.inputs, strict=True):
            if encoded is None or not model.shares_encoder:
                encoded = builder.encoder(trunk, seen, self._obs, statistics)
            features.append(builder.core(trunk, encoded, begin, writes_state))
            begin += trunk.state_size
        for layer in builder.layers:
            layer.bf16 = bf16
        builder.output(self.params, self.by_params)
        builder.output(self.values, self.by_values)
        builder.linear(features[0], model.policy_head, out=self.params[:, : model.policy_head.out_features])
        if model.value_head is not None:
            builder.linear(features[-1], model.value_head, out=self.values)
        self.outputs = [(self.params, self.by_params), (self.values[:, 0], self.by_values[:, 0])]
        if self._gradients is not None and model.feature_losses:
            self.outputs.append((features[0], builder.derivatives_to_add_to(features[0])))

    def load(self) -> None:
        """Pack the current weights. Call it whenever they have changed."""
        for scan in self.builder.scans:
            scan.load()
        if self._model.log_std is not None:
            self.params[:, self._model.policy_head.out_features :] = self._model.log_std.detach().numpy()
        self.kernels.load_weights(self.layers, len(self.layers))

    def forward(self, active: np.ndarray | None = None, index: np.ndarray | None = None) -> None:
        """Compute `params` and `values` of a batch, in the first rows.

        Args:
            active: int32 [L], sequences that have a step t; never increasing. None: one step of all J sequences.
            index: int64 [R], the row of `obs` that each row reads. None: row r reads row r.
        """
        self._batch = self._one_step if active is None else self._packed(active, index)
        count = self._batch.rows
        read = slice(count) if index is None else index
        for leaf, i, part in self.builder.conversions:
            stored = torch.from_numpy(self._obs[i][read])
            torch.from_numpy(part[:count]).copy_(network_input(leaf, stored).flatten(1))
        self.kernels.forward(self.layers, len(self.layers), ctypes.byref(self._batch))
        if self._model.has_mask:
            self.params[:count][self._obs[-1][read] == 0] = MASKED

    def _packed(self, active: np.ndarray, index: np.ndarray | None = None) -> Batch:
        """Describe a batch. See `forward`."""
        self._arrays = active, index  # the batch has only their addresses
        batch = Batch(rows=int(active.sum()), steps=len(active), sequences=int(active[0]), active=active.ctypes.data)
        if index is not None:
            batch.index = index.ctypes.data
        return batch

    def backward(self, shards: range, order: np.ndarray, bounds: np.ndarray) -> None:
        """Write the gradients of shards, from `by_params` and `by_values` of the batch of the last `forward`.

        Args:
            shards: the shards to which the rows of the batch belong.
            order: int64 [R], the rows of the first shard in ascending order, then those of the next one.
            bounds: int64 [shards + 1], where the rows of each shard begin in `order`.
        """
        assert self._gradients is not None
        batch = self._batch
        batch.shards, batch.first_shard = len(shards), shards.start
        batch.order, batch.bounds = order.ctypes.data, bounds.ctypes.data
        batch.gradient_stride = self._gradients.shape[1]
        self.kernels.backward(self.layers, len(self.layers), ctypes.byref(batch))
        log_std = self._model.log_std
        if log_std is not None:
            by_log_std = self.by_params.take(order, 0)[:, -log_std.numel() :]
            for shard, begin, end in zip(shards, bounds[:-1], bounds[1:], strict=True):
                np.add.reduce(by_log_std[begin:end], 0, out=self._gradient(shard, log_std))
        for i, shard in enumerate(shards):
            for scan in self.builder.scans:
                parameters = scan.log_decay, scan.log_phase
                for parameter, gradient in zip(parameters, scan.gradients(i), strict=True):
                    self._gradient(shard, parameter)[:] = gradient

    def _gradient(self, shard: int, parameter: Tensor) -> np.ndarray:
        """Return where `backward` writes the gradient of a parameter."""
        assert self._gradients is not None
        begin = self.builder.offsets[id(parameter)]
        flat: np.ndarray = self._gradients[shard]
        return flat[begin : begin + parameter.numel()]
