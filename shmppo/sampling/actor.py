"""Acting: compute actions from observations, in inference batches of a fixed size, on preallocated memory.

`Actor` is the only implementation of acting: normalize, encode, recurrent core, heads, sample. The collector, the state
refresh, evaluation, and the policy API use it. It also computes the values that bootstrap truncated steps.

An inference batch has B rows, and B depends only on the configuration. Environment n always uses row n mod B, and rows
of other processes are zero, so the actions of an environment come from calls of the same shape and alignment, at the
same row, whichever process steps it. The module `row_independence` checks that the other rows do not change them,
as those of a custom network may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, Trunk
from shmppo.models.cores import CORES, ActingLinear, Cell
from shmppo.models.custom import CustomNetwork
from shmppo.models.encoders import Encoder, Mlp, leaf_statistics, network_input, normalize_array
from shmppo.spaces.distributions import Distribution, mask_logits
from shmppo.utils.torch_utils import aligned_rows, aligned_zeros


@dataclass(frozen=True)
class InferenceSlice:
    """The part of one inference batch that a range of environments uses."""

    index: int
    """Number of the batch among those of the range, from 0."""
    rows: slice
    """Rows of the batch that belong to the range."""
    own: slice
    """The environments in these rows, counted from the beginning of the range."""


def inference_slices(low: int, high: int, rows: int) -> list[InferenceSlice]:
    """Return the parts of inference batches that environments low … high − 1 use.

    Args:
        low: index of the first environment.
        high: index after the last environment.
        rows: B. Environment n has row n mod B.
    """
    slices = []
    for index, batch in enumerate(range(low // rows, (high - 1) // rows + 1)):
        begin, end = max(low, batch * rows), min(high, (batch + 1) * rows)
        slices.append(
            InferenceSlice(index, slice(begin - batch * rows, end - batch * rows), slice(begin - low, end - low))
        )
    return slices


class _ActingMlp:
    """The acting version of `Mlp`, for one vector or several leaves, on preallocated memory."""

    def __init__(self, encoder: Encoder, layers: Mlp, rows: int) -> None:
        self.encoder, self.layers = encoder, layers
        self.linears = [ActingLinear(rows, layer.in_features, layer.out_features) for layer in layers.linear_list]
        sizes = [leaf.input_size for leaf in encoder.leaves]
        self.joined = aligned_rows(rows, sum(sizes))
        self.parts = torch.split(self.joined, sizes, 1)

    def load(self) -> None:
        for linear, layer in zip(self.linears, self.layers.linear_list, strict=True):
            linear.load([layer.weight], [layer.bias])

    def __call__(self, obs: Sequence[Tensor]) -> Tensor:
        x = obs[self.encoder.indices[0]]
        if len(self.parts) > 1:
            x = self.joined
            for leaf, i, part in zip(self.encoder.leaves, self.encoder.indices, self.parts, strict=True):
                part.copy_(network_input(leaf, obs[i]).flatten(1))
        for linear in self.linears:
            x = linear(x)
            if self.layers.activation == "tanh":
                np.tanh(linear.array, linear.array)
            else:
                np.maximum(linear.array, 0.0, out=linear.array)
        return x


def _acting_encoder(encoder: Encoder, rows: int) -> _ActingMlp | Encoder:
    layers, leaves = encoder.network, encoder.leaves
    if isinstance(layers, Mlp) and not layers.normalized and (len(leaves) > 1 or leaves[0].kind == "vector"):
        return _ActingMlp(encoder, layers, rows)
    return encoder  # the module of the learning network, whose weights do not change during a rollout


class _ActingTrunk:
    """The acting version of `Trunk`: encoders, then the layers of the recurrent core."""

    def __init__(self, trunk: Trunk, states: Tensor, shared: _ActingTrunk | None = None) -> None:
        """Allocate the memory.

        Args:
            states: [batches, B, S of this trunk], the part of the packed states to update in place.
            shared: the trunk that is called before, whose encoders this one uses. None: it has encoders of its own.
        """
        batches, rows, _ = states.shape
        self._shared = shared
        self.encoders = [_acting_encoder(encoder, rows) for encoder in trunk.encoder_list]
        self.encoded = aligned_zeros(rows, trunk.encoded)
        self.cells: list[Cell] = []
        self.states: list[list[list[np.ndarray]]] = [[] for _ in range(batches)]  # [batch][layer][part]: [B, H]
        self.outputs: list[Tensor] = []  # of the last layer, by batch
        if trunk.core is None:
            return
        cell, size = CORES[trunk.core_name].cell, trunk.part_size
        for layer in range(trunk.layers):
            self.cells.append(cell(rows, trunk.core, layer))
            starts = [(part * trunk.layers + layer) * size for part in range(trunk.parts)]
            for batch in range(batches):
                self.states[batch].append([states[batch, :, start : start + size].numpy() for start in starts])
        output = self.cells[-1].output
        first_parts = [states[batch, :, starts[0] : starts[0] + size] for batch in range(batches)]
        self.outputs = first_parts if output is None else [output] * batches

    def load(self) -> None:
        for encoder in self.encoders:
            if isinstance(encoder, _ActingMlp):
                encoder.load()
        for cell in self.cells:
            cell.load()

    def __call__(self, obs: list[Tensor], batch: int) -> Tensor:
        self._x: Tensor = self._encode(obs) if self._shared is None else self._shared._x
        if not self.cells:
            return self._x
        inputs = self._x.numpy()
        for cell, state in zip(self.cells, self.states[batch], strict=True):
            inputs = cell.step(inputs, *state)
        return self.outputs[batch]

    def _encode(self, obs: list[Tensor]) -> Tensor:
        parts = [encoder(obs) for encoder in self.encoders]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1, out=self.encoded)


class _ActingCustomNetwork:
    """A custom network: it calls the module of the learning network, one step at a time."""

    def __init__(self, trunk: CustomNetwork, states: Tensor) -> None:
        """states: [batches, B, S of this trunk], the part of the packed states to update in place."""
        self.trunk = trunk
        self.states = list(states)

    def load(self) -> None:
        pass

    def __call__(self, obs: list[Tensor], batch: int) -> Tensor:
        state = self.states[batch]
        features: Tensor
        features, next_state = self.trunk([leaf.unsqueeze(0) for leaf in obs], state.contiguous())
        state.copy_(next_state)
        return features[0]


class ActingNetwork:
    """The actor-critic for acting: it computes one step of an inference batch of B rows.

    Attributes:
        obs: [batches, B, …] per leaf, written by the caller. Vectors are normalized, other leaves are as stored.
        state: [batches, B, S], packed recurrent states; `step` updates them.
        params: [B, P], policy parameters of the last call of `step`.
        values: [B, 1], values of the last call of `step`.
    """

    def __init__(self, model: ActorCritic, distribution: Distribution, *, batches: int, rows: int) -> None:
        """Allocate the memory. Call `load` before the first step.

        Args:
            model: the network that learns; `load` copies its weights.
            batches: number of inference batches.
            rows: B, rows of each batch.
        """
        self._model = model
        self.distribution = distribution
        self.leaves = model.observation.leaves
        # Matrix products read vectors and states. Their bits may depend on the alignment, which must be the same in
        # all batches.
        self.obs = [
            aligned_rows(batches, rows, *leaf.shape)
            if leaf.kind == "vector"
            else aligned_zeros(batches, rows, *leaf.shape, dtype=getattr(torch, leaf.dtype))
            for leaf in self.leaves
        ]
        self.state = aligned_rows(batches, rows, model.state_size)
        trunks = model.trunk_list
        trunk_states = torch.split(self.state, [trunk.state_size for trunk in trunks], 2)
        self._trunks: list[_ActingCustomNetwork | _ActingTrunk] = []
        for trunk, states in zip(trunks, trunk_states, strict=True):
            if isinstance(trunk, CustomNetwork):
                self._trunks.append(_ActingCustomNetwork(trunk, states))
            else:
                shared = cast(_ActingTrunk, self._trunks[0]) if self._trunks and model.shares_encoder else None
                self._trunks.append(_ActingTrunk(trunk, states, shared))
        self._obs_by_batch = [[[self.obs[i][batch] for i in seen] for seen in model.inputs] for batch in range(batches)]
        self._masks = list(self.obs[-1]) if model.has_mask else None
        # Adjacent columns for the value and the policy outputs: on a shared trunk, one matrix product computes both.
        outputs = distribution.num_outputs
        heads = aligned_zeros(rows, 1 + distribution.num_params)
        self.values, self.params = heads[:, :1], heads[:, 1:]
        self._state_independent = heads[:, 1 + outputs :]
        self._shared = len(trunks) == 1 and model.value_head is not None
        if self._shared:
            self._heads = [ActingLinear(rows, trunks[0].features, 1 + outputs, out=heads[:, : 1 + outputs])]
        else:
            columns = (heads[:, 1 : 1 + outputs], self.values)
            self._heads = [
                ActingLinear(rows, trunk.features, out.shape[1], out=out)
                for trunk, out in zip(trunks, columns, strict=False)
            ]

    @torch.inference_mode()
    def load(self) -> None:
        """Copy the current weights of the model."""
        model = self._model
        for trunk in self._trunks:
            trunk.load()
        heads = [head for head in (model.value_head, model.policy_head) if head is not None]
        if self._shared:
            self._heads[0].weight.copy_(torch.cat([head.weight for head in heads]).t())
            self._heads[0].bias.copy_(torch.cat([head.bias for head in heads]))
        else:
            for linear, head in zip(self._heads, reversed(heads), strict=True):
                linear.load([head.weight], [head.bias])
        if model.log_std is not None:
            self._state_independent.copy_(model.log_std.expand_as(self._state_independent))

    def step(self, batch: int) -> None:
        """Run one forward pass. It reads `obs[…][batch]`, updates `state[batch]`, and writes `params` and `values`.

        Call it in inference mode.
        """
        for trunk, head, obs in zip(self._trunks, self._heads, self._obs_by_batch[batch], strict=True):
            head(trunk(obs, batch))
        if self._masks is not None:
            self.params.copy_(mask_logits(self.params, self._masks[batch]))


class Actor:
    """Acts for a range of environments. "own" below is the number of environments in the range.

    Attributes:
        states: float32 [own, S], recurrent states; the caller may write them.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: ActorCritic,
        distribution: Distribution,
        obs: Sequence[np.ndarray],
        *,
        low: int,
        noise_steps: int = 1,
        rows: int | None = None,
    ) -> None:
        """Allocate the memory. Call `load` before the first step.

        Args:
            model: the network that learns; `load` copies its weights.
            obs: [own, …] per leaf. Each step reads the current observations from these arrays.
            low: index of the first environment of the range.
            noise_steps: number of steps of noise that `load_noise` takes.
            rows: B, a multiple of BATCH_ROWS. None: as in training.
        """
        self._distribution = distribution
        rows, count = rows or config.inference_rows, len(obs[0])
        self._slices = inference_slices(low, low + count, rows)
        # The last batch is scratch memory for `values_of`.
        self._network = ActingNetwork(model, distribution, batches=len(self._slices) + 1, rows=rows)
        self._params, self._values = self._network.params.numpy(), self._network.values.numpy()
        # Batches are adjacent in memory, so the rows of this range are contiguous.
        first_row = low % rows
        self.states: np.ndarray = self._network.state.flatten(0, 1)[first_row : first_row + count].numpy()
        self._noise = np.zeros((len(self._slices), noise_steps, rows, distribution.noise_size), np.float32)
        spec = model.observation
        self._obs_mean = np.zeros(spec.normalized_size, np.float32)
        self._obs_scale = np.ones(spec.normalized_size, np.float32)
        self._statistics = leaf_statistics(
            spec.normalized_slices, self._obs_mean, self._obs_scale, config.normalize_obs
        )
        self._targets = [leaf.numpy() for leaf in self._network.obs]
        self._inputs = [
            [
                (leaf[batch.own], statistics, target[batch.index, batch.rows])
                for leaf, statistics, target in zip(obs, self._statistics, self._targets, strict=True)
            ]
            for batch in self._slices
        ]

    def load(self, obs_mean: np.ndarray, obs_scale: np.ndarray) -> None:
        """Copy the current weights of the model, and the statistics that normalize observations.

        Args:
            obs_mean: [D].
            obs_scale: [D], 1 / standard deviation.
        """
        self._network.load()
        self._obs_mean[:], self._obs_scale[:] = obs_mean, obs_scale

    def load_noise(self, noise: np.ndarray) -> None:
        """Copy the noise of the next steps, float32 [noise_steps, own, noise_size]."""
        for batch in self._slices:
            self._noise[batch.index, :, batch.rows] = noise[:, batch.own]

    @np.errstate(over="ignore", invalid="ignore")  # if the policy has diverged, the update says so
    def act(self, actions: np.ndarray, params: np.ndarray, values: np.ndarray, step: int | None = 0) -> None:
        """Act on the current observations, and update the recurrent states. Call it in inference mode.

        Args:
            actions: [own, A], written.
            params: [own, P], policy parameters, written.
            values: [own], written.
            step: index of the step whose noise is used, 0 … noise_steps − 1. None: take the most likely actions.
        """
        network, distribution = self._network, self._distribution
        for batch, inputs, noise in zip(self._slices, self._inputs, self._noise, strict=True):
            for obs, statistics, target in inputs:
                normalize_array(obs, statistics, target)
            network.step(batch.index)
            chosen = distribution.mode(self._params) if step is None else distribution.sample(self._params, noise[step])
            actions[batch.own] = chosen[batch.rows]
            params[batch.own] = self._params[batch.rows]
            values[batch.own] = self._values[batch.rows, 0]

    @np.errstate(over="ignore", invalid="ignore")
    def advance(self) -> None:
        """Update the recurrent states with the current observations, without acting. Call it in inference mode."""
        for batch, inputs in zip(self._slices, self._inputs, strict=True):
            for obs, statistics, target in inputs:
                normalize_array(obs, statistics, target)
            self._network.step(batch.index)

    @np.errstate(over="ignore", invalid="ignore")
    def values_of(self, obs: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the values of observations with the current recurrent states. The states do not change.

        Call it in inference mode.

        Args:
            obs: [own, …] per leaf, as stored.

        Returns:
            float32 [own].
        """
        values, scratch = np.empty(len(self.states), np.float32), len(self._slices)
        for batch in self._slices:
            self._network.state[scratch] = self._network.state[batch.index]
            for leaf, statistics, target in zip(obs, self._statistics, self._targets, strict=True):
                target[scratch] = 0
                normalize_array(leaf[batch.own], statistics, target[scratch, batch.rows])
            self._network.step(scratch)
            values[batch.own] = self._values[batch.rows, 0]
        return values
