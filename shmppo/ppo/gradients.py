"""The gradients of shards: read their sequences, run the network, compute the loss and its gradient.

A minibatch has G shards of whole sequences. The gradient of a shard has the same bits in every process, and the
shards are added in order, so central and sharded learning give the same weights. The kernels compute all shards of a
process in one batch, because the result of a row does not depend on the others; torch computes one shard at a time.

Axes: R rows, one per step of the sequences; L steps of the longest one; J sequences of a batch; S recurrent state; P
parameters of the network. Per step there are A action dimensions, O policy parameters, and Q log_probs (1, or A with
--ratio per-dimension).
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shmppo.config.extensions import added
from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic
from shmppo.models.native import uses_kernels
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.loss import Loss, LossInputs
from shmppo.ppo.native_gradients import NativeGradients
from shmppo.ppo.torch_gradients import StoredObservations, TorchGradients
from shmppo.spaces.distributions import Distribution
from shmppo.utils.torch_utils import set_numeric_modes

GradientNetwork = NativeGradients | TorchGradients
"""Computes a network and its gradients, for one batch of sequences after the other. `NativeGradients` explains the
methods."""


class ShardGradients:
    """Computes the gradients of shards with the current weights of `model`."""

    def __init__(
        self,
        config: TrainConfig,
        distribution: Distribution,
        model: ActorCritic,
        buffers: SharedBuffers,
        progress: np.ndarray | None = None,
    ) -> None:
        """Create views of the inputs and the results.

        Args:
            progress: [1], increased by 1 after each batch of shards, so that a worker that computes for long does not
                count as stalled. None: nobody watches.
        """
        self._config, self._distribution, self._loss = config, distribution, Loss(config, distribution)
        self._progress = np.zeros(1, np.int64) if progress is None else progress
        self._minibatches, self._results = buffers.minibatches, buffers.shard_results
        arrays, steps = buffers.arrays, config.rollout_steps * config.rows
        # An array of the rollout as [T·N, …], by its name.
        self._steps_of = functools.cache(lambda name: arrays[f"rollout.{name}"].reshape(steps, -1))
        states = buffers.rollout.sequence_state
        self._states = states.reshape(config.state_slots * config.rows, model.state_size)
        self._network: GradientNetwork
        if uses_kernels(config, model):
            self._network = NativeGradients(config, model, buffers)
        else:
            self._network = TorchGradients(config, model, buffers)
        observations = StoredObservations(config, model, buffers)
        self._feature_losses = feature_losses(model, observations, torch.from_numpy(buffers.shard_results.gradients))

    @torch.enable_grad()  # the code of an environment may have disabled gradients
    def compute(self, epoch: int, minibatch: int, shards: range) -> None:
        """Write the gradients, loss terms, and largest |log ratio| of some shards of a minibatch.

        Gradients and loss terms are sums over the valid steps of a shard, divided by the valid steps of the minibatch
        over all ranks, so their sum over shards and ranks is the mean over the minibatch.
        """
        self._network.load()
        for batch in [range(s, s + 1) for s in shards] if self._network.one_by_one else [shards]:
            self._compute(epoch, minibatch, batch)
            self._progress += 1

    def _compute(self, epoch: int, minibatch: int, shards: range) -> None:
        """Compute one batch of shards."""
        minibatches, results = self._minibatches, self._results
        cuts = minibatches.bounds[epoch, minibatch, shards.start : shards.stop + 1]
        if cuts[0] == cuts[-1]:  # the minibatch has fewer sequences than shards
            for array in (results.gradients, results.loss_terms, results.max_log_ratio):
                array[shards.start : shards.stop] = 0.0
            return
        # `take` is faster than an index.
        sequences: np.ndarray = minibatches.sequences.take(minibatches.order[epoch, cuts[0] : cuts[-1]], 0)
        index, active, member = pack_steps(sequences, self._config.rows)
        params, values, *features = self._network.forward(active, index, self.initial_states(sequences))
        inputs = LossInputs(
            config=self._config,
            distribution=self._distribution,
            coefficients=dict(zip(self._loss.coefficient_metrics, minibatches.coefficients.tolist(), strict=True)),
            params=params,
            values=values,
            step_targets=minibatches.step_targets.take(index, 0),
            advantage_scale=minibatches.advantage_scale[epoch, minibatch],
            rollout=functools.cache(lambda name: self._steps_of(name).take(index, 0)),
        )
        by_params, by_values, terms, log_ratios = self._loss.compute(inputs)
        shard = np.repeat(np.arange(len(shards)), np.diff(cuts)).take(member)  # of each row
        order = np.argsort(shard, kind="stable")
        bounds = np.searchsorted(shard.take(order), np.arange(len(shards) + 1))
        steps = int(minibatches.steps[epoch, minibatch])
        parts = [slice(*part) for part in itertools.pairwise(bounds.tolist())]  # of `order`, for each shard
        by_features = [np.zeros_like(output) for output in features]
        for s, part in zip(shards, parts, strict=True) if self._feature_losses else ():
            rows = order[part]
            at = index[rows]
            actions, returns = self._steps_of("actions")[at], minibatches.step_targets[at, 1]
            # These tensors have memory of torch, which is aligned in the same way in every process.
            arrays = features[0][rows], at, actions, returns, np.ones(len(at), bool)
            read = [torch.tensor(array) for array in arrays]
            found = [loss.compute(s, *read, steps) for loss in self._feature_losses]
            for loss, (values_of_loss, _) in zip(self._feature_losses, found, strict=True):
                terms[rows, self._loss.metrics.index(loss.metric)] = values_of_loss
            by_features[0][rows] = functools.reduce(np.add, [derivative.numpy() for _, derivative in found])
        self._network.backward(shards, order, bounds, by_params / steps, by_values / steps, *by_features)
        terms, log_ratios = terms.take(order, 0), log_ratios.take(order)
        for s, part in zip(shards, parts, strict=True):
            results.loss_terms[s] = np.add.reduce(terms[part], 0, np.float64) / steps
            results.max_log_ratio[s] = np.maximum.reduce(log_ratios[part], initial=0.0)

    def outputs(self, sequences: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute the network with the current weights: policy parameters [R, O], values [R], see `NativeGradients`.

        The rows are in the order of (step, sequence), the longest sequence first. The next call overwrites them.

        Args:
            sequences: [J, 4], in any order.
        """
        self._network.load()
        sequences = sequences[np.argsort(-sequences[:, 2], kind="stable")]
        index, active, _ = pack_steps(sequences, self._config.rows)
        outputs = self._network.forward(active, index, self.initial_states(sequences))
        set_numeric_modes()  # the network may be the user's
        return outputs

    def initial_states(self, sequences: np.ndarray) -> np.ndarray:
        """Return the initial recurrent states [J, S]: stored ones, or zero where a sequence begins an episode."""
        _, column, _, slot = sequences.T
        states: np.ndarray = self._states[np.maximum(slot, 0) * np.int64(self._config.rows) + column]
        states[slot < 0] = 0.0
        return states


def feature_losses(model: ActorCritic, observations: StoredObservations, gradients: Tensor) -> list[Any]:
    """Return what computes the losses of features of a network. gradients: [G, P], where to write their gradients."""
    used = [one for one in added("feature_loss") if one.NAME in model.feature_losses]
    return [one.GRADIENTS(model, observations, gradients) for one in used]


def pack_steps(sequences: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps of some sequences in the order of (step, sequence), without padding.

    Args:
        sequences: [J, 4], as `cut_sequences` returns them: first step, column, steps, slot of the initial state. Those
            with the most steps are first.
        rows: N.

    Returns:
        (index int64 [R] of each step in flattened arrays [T·N, …], active int32 [L], the number of sequences that have
        a step t, member int64 [R], to which sequence each step belongs).
    """
    first, column, steps, _ = sequences.T
    has_step = np.arange(steps[0])[:, np.newaxis] < steps  # [L, J]
    offset, member = np.nonzero(has_step)
    index = (first.take(member) + offset) * np.int64(rows) + column.take(member)
    return index, has_step.sum(axis=1, dtype=np.int32), member
