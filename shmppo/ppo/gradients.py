"""The gradient of one shard: read its sequences, run the network, compute the loss, and write the gradient.

A minibatch has G shards of whole sequences. The gradient of a shard has the same bits in every process, and the learner
adds the shards in order. So central and sharded learning give the same weights.

Axes: L steps of padded sequences, J sequences of a shard, S recurrent state, P parameters of the network. Per step
there are A action dimensions, O policy parameters, and Q log_probs (1, or A with --ratio per-dimension).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, Observations, parameter_views
from shmppo.models.distributions import Distribution
from shmppo.models.normalization import leaf_statistics, normalize_leaf
from shmppo.parallel.shared_buffers import LossCoefficients, LossTerms, Minibatches, ShardResults, SharedBuffers
from shmppo.ppo.losses import (
    clipped_objective,
    clipped_objective_grad,
    dimension_clipped_objective,
    dimension_clipped_objective_grad,
    dual_clipped,
    dual_clipped_grad,
    kl_estimate,
    unclipped_objective,
    value_loss,
    value_loss_grad,
)
from shmppo.ppo.minibatches import step_indices


@dataclass(frozen=True)
class GradientInputs:
    """The tensors from which gradients are computed, on one device. The first two axes of the rollout are flattened."""

    obs: tuple[Tensor, ...]
    """[T·N, …] per leaf, as stored."""
    actions: Tensor
    """[T·N, A]"""
    policy_params: Tensor
    """[T·N, O], of the policy that acted. O is 0 without --objective penalty."""
    sequence_state: Tensor
    """[C·N, S], stored recurrent states."""
    step_targets: Tensor
    """[T·N, 3 + Q]: advantage, value target, old value, and old log_prob."""
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
            actions=torch.from_numpy(rollout.actions).flatten(0, 1),
            policy_params=torch.from_numpy(rollout.policy_params).flatten(0, 1),
            sequence_state=torch.from_numpy(rollout.sequence_state).flatten(0, 1),
            step_targets=torch.from_numpy(buffers.minibatches.step_targets),
            obs_mean=torch.from_numpy(published.obs_mean),
            obs_scale=torch.from_numpy(published.obs_scale),
            weights=torch.from_numpy(published.weights),
        )


class _Outputs(NamedTuple):
    """The tensors that the loss depends on."""

    log_prob: Tensor
    """[L, J, Q], of the stored actions."""
    values: Tensor
    """[L, J]"""
    entropy: Tensor
    """[L, J]. It has no autograd graph if its coefficient is 0."""
    kl: Tensor | None
    """KL(old ‖ new) in closed form, [L, J]. None without --objective penalty."""


class ShardGradients:
    """Computes the gradients of shards with the current weights of `model`."""

    def __init__(
        self,
        config: TrainConfig,
        distribution: Distribution,
        model: ActorCritic,
        buffers: SharedBuffers,
        inputs: GradientInputs | None = None,
        gradients: Tensor | None = None,
    ) -> None:
        """Create views of the inputs and the results.

        Args:
            config: of the run.
            distribution: of the actions.
            model: the network.
            buffers: the shared buffers.
            inputs: on the device of `model`. None: views of the shared memory.
            gradients: [G, P], where to write gradients, on the device of `model`. None: in shared memory.
        """
        self._config = config
        self._distribution = distribution
        self._model = model
        self._minibatches: Minibatches = buffers.minibatches
        self._results: ShardResults = buffers.shard_results
        self._inputs = GradientInputs.of(buffers) if inputs is None else inputs
        flat_gradients = torch.from_numpy(self._results.gradients) if gradients is None else gradients
        self._parameters = list(model.parameters())
        self._gradients = [parameter_views(shard, model) for shard in flat_gradients]
        mean, scale = self._inputs.obs_mean, self._inputs.obs_scale
        self._statistics = leaf_statistics(model.observation.normalized_slices, mean, scale, config.normalize_obs)
        self._device = self._inputs.step_targets.device

    def compute(self, epoch: int, minibatch: int, shards: Iterable[int]) -> None:
        """Write the gradients, loss terms, and largest |log ratio| of some shards of a minibatch.

        Gradients and loss terms are sums over the valid steps of a shard, divided by the valid steps of the minibatch
        over all ranks. So their sum over shards and ranks is the mean over the minibatch.

        Args:
            epoch: index of the epoch.
            minibatch: index of the minibatch in the epoch.
            shards: indices of the shards.
        """
        for shard in shards:
            self._compute(epoch, minibatch, shard)

    def _compute(self, epoch: int, minibatch: int, shard: int) -> None:
        steps = int(self._minibatches.steps[epoch, minibatch])
        sequences = self._sequences(epoch, minibatch, shard)
        if not len(sequences):  # the minibatch has fewer sequences than shards
            torch._foreach_zero_(self._gradients[shard])
            self._results.loss_terms[shard] = 0.0
            self._results.max_log_ratio[shard] = 0.0
            return
        indices, valid = self._step_indices(sequences)
        weights, shape = valid.float(), valid.shape  # [L, J]
        obs = self._observations(indices, shape)
        targets = self._inputs.step_targets.index_select(0, indices).view(*shape, -1)

        outputs = self._forward(obs, self._initial_states(sequences), indices)
        with torch.no_grad():
            output_grads, terms, max_log_ratio = self._loss(outputs, targets, weights, epoch, minibatch)
        # This scalar has the derivatives `output_grads`. Passing them to autograd as arguments would make torch import
        # sympy, which needs 60 MB per process.
        pairs = [(out, grad) for out, grad in zip(outputs, output_grads, strict=True) if out is not None]
        products = [torch.dot(out.flatten(), grad.flatten()) for out, grad in pairs if out.requires_grad]
        loss = torch.stack(products).sum()
        gradients = torch.autograd.grad(loss / steps, self._parameters)
        torch._foreach_copy_(self._gradients[shard], list(gradients))
        self._results.loss_terms[shard] = terms / steps
        self._results.max_log_ratio[shard] = max_log_ratio

    def _forward(self, obs: Observations, states: Tensor, indices: Tensor) -> _Outputs:
        """Run the network, and compute what the loss depends on.

        Args:
            obs: [L, J, …] per leaf.
            states: [J, S], initial recurrent states.
            indices: [L·J], of the steps.
        """
        config, distribution = self._config, self._distribution
        params, values = self._network(obs, states)
        actions = self._inputs.actions.index_select(0, indices).view(*params.shape[:2], -1)
        log_prob = distribution.log_prob(params, actions)
        if config.ratio == "joint":
            log_prob = log_prob.sum(-1, keepdim=True)
        with torch.set_grad_enabled(config.entropy_coef > 0):
            entropy = distribution.entropy(params)
        kl = None
        if config.objective == "penalty":
            kl = distribution.kl(self._inputs.policy_params.index_select(0, indices).view(params.shape), params)
        return _Outputs(log_prob, values, entropy, kl)

    def _network(self, obs: Observations, states: Tensor) -> tuple[Tensor, Tensor]:
        """Compute policy parameters [L, J, O] and values [L, J]. --autocast bf16 applies to matrix products."""
        if self._config.autocast == "none":
            params, values, _ = self._model(obs, states)
            return params, values
        with torch.autocast(states.device.type, torch.bfloat16):
            params, values, _ = self._model(obs, states)
        return params.float(), values.float()

    @torch.no_grad()
    def policy(self, sequences: np.ndarray) -> tuple[Tensor, Tensor]:
        """Compute the policy parameters at the steps of some sequences, with the current weights.

        Args:
            sequences: [J, 4].

        Returns:
            (policy parameters [L, J, O], valid bool [L, J]).
        """
        indices, valid = self._step_indices(sequences)
        return self._network(self._observations(indices, valid.shape), self._initial_states(sequences))[0], valid

    def _step_indices(self, sequences: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the indices [L·J] of the steps of padded sequences, and whether they are valid, bool [L, J]."""
        config = self._config
        indices, valid = step_indices(
            sequences, sequence_steps=config.sequence_steps, num_envs=config.num_envs, burn_in=config.burn_in
        )
        return torch.from_numpy(indices.reshape(-1)).to(self._device), torch.from_numpy(valid).to(self._device)

    def _observations(self, indices: Tensor, shape: torch.Size) -> list[Tensor]:
        """Return the network's input at the steps with these indices [L·J]: [L, J, …] per leaf."""
        return [
            normalize_leaf(leaf.index_select(0, indices), statistics).view(*shape, *leaf.shape[1:])
            for leaf, statistics in zip(self._inputs.obs, self._statistics, strict=True)
        ]

    def _sequences(self, epoch: int, minibatch: int, shard: int) -> np.ndarray:
        """Return the sequences of a shard, [J, 4]."""
        minibatches = self._minibatches
        begin, end = minibatches.bounds[epoch, minibatch, shard : shard + 2].tolist()
        sequences: np.ndarray = minibatches.sequences[minibatches.order[epoch, begin:end]].astype(np.int64)
        return sequences

    def _initial_states(self, sequences: np.ndarray) -> Tensor:
        """Return the initial recurrent states [J, S]: stored ones, or zero where a sequence begins an episode."""
        if not self._model.state_size:
            return torch.zeros(len(sequences), 0, device=self._device)
        begins_episode = torch.from_numpy(sequences[:, 3] < 0).to(self._device)
        indices = np.maximum(sequences[:, 3], 0) * self._config.num_envs + sequences[:, 1]
        states = self._inputs.sequence_state.index_select(0, torch.from_numpy(indices).to(self._device))
        return states.masked_fill_(begins_episode.unsqueeze(-1), 0.0)

    def _loss(
        self, outputs: _Outputs, targets: Tensor, weights: Tensor, epoch: int, minibatch: int
    ) -> tuple[list[Tensor], np.ndarray, float]:
        """Compute the loss terms and the derivatives of the loss, as sums over valid steps.

        Args:
            outputs: of the network.
            targets: [L, J, 3 + Q], from `step_targets`.
            weights: [L, J], 1 at valid steps and 0 elsewhere.
            epoch: index of the epoch.
            minibatch: index of the minibatch in the epoch.

        Returns:
            (derivatives with respect to each element of `outputs`, LossTerms as an array, largest |log ratio|).
        """
        config = self._config
        coefficients = LossCoefficients(*self._minibatches.coefficients.tolist())
        value_clip = coefficients.clip_range if config.value_clip else None
        mean, scale = self._minibatches.advantage_scale[epoch, minibatch].tolist()
        advantages, value_targets, old_values = targets[..., :3].unbind(-1)
        advantages = (advantages - mean) * scale * weights
        # Set log ρ of padding to 0 before the exponential. Afterwards, 0 times an infinite ρ would be NaN.
        log_ratios = (outputs.log_prob - targets[..., 3:]) * weights.unsqueeze(-1)
        log_ratio = log_ratios.sum(-1)
        ratio = log_ratio.exp()
        ratios = ratio.unsqueeze(-1) if config.ratio == "joint" else log_ratios.exp()
        objective, objective_grad = self._objective(ratios, advantages, coefficients.clip_range)
        value_arguments = (outputs.values, value_targets, old_values, value_clip)
        output_grads = [
            -objective_grad,
            value_loss_grad(*value_arguments) * weights * config.value_coef,
            weights * -coefficients.entropy_coef,
            weights * coefficients.penalty_coef,
        ]
        if outputs.kl is None:
            kl = kl_estimate(log_ratio, ratio)
        else:
            kl = outputs.kl * weights
            objective = objective - coefficients.penalty_coef * kl
        terms = {
            "policy_loss": -objective,
            "value_loss": value_loss(*value_arguments) * weights,
            "entropy": outputs.entropy * weights,
            "approx_kl": kl,
            "clip_fraction": ((ratios - 1).abs() > coefficients.clip_range).float().mean(-1),
        }
        sums = torch.stack([terms[name] for name in LossTerms._fields]).flatten(1).sum(-1)
        # One transfer from the device for all numbers.
        numbers = torch.cat([sums, log_ratio.abs().max().view(1)]).double().cpu().numpy()
        return output_grads, numbers[:-1], float(numbers[-1])

    def _objective(self, ratios: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """Compute the objective per step [L, J], to be maximized, and its derivative with respect to log π.

        Args:
            ratios: [L, J, Q].
            advantages: [L, J], 0 at steps that are not valid.
            clip: ε.

        Returns:
            (objective [L, J], derivative [L, J] or, per action dimension, [L, J, Q]).
        """
        config = self._config
        if config.ratio == "per-dimension":
            objective = dimension_clipped_objective(ratios, advantages, clip)
            gradient = dimension_clipped_objective_grad(ratios, advantages, clip)
        elif config.objective == "clip":
            ratio = ratios.squeeze(-1)
            objective = clipped_objective(ratio, advantages, clip)
            gradient = clipped_objective_grad(ratio, advantages, clip)
        else:
            objective = gradient = unclipped_objective(ratios.squeeze(-1), advantages)
        if config.dual_clip is not None:
            gradient = dual_clipped_grad(gradient, objective, advantages, config.dual_clip)
            objective = dual_clipped(objective, advantages, config.dual_clip)
        return objective, gradient
