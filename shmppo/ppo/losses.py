"""PPO losses, and the gradient of one shard: read its sequences, run the network, compute the loss and its gradient.

The losses are functions of NumPy arrays. Each returns its value per step and the derivative by hand: that of an
objective with respect to log π(a|s), that of the value loss with respect to V. Arguments and results are arrays of the
same shape [...], with one element per step, unless a docstring says otherwise.

A minibatch has G shards of whole sequences. The gradient of a shard has the same bits in every process, and the learner
adds the shards in order, so central and sharded learning give the same weights.

Symbols: ρ = π(a|s) / π_old(a|s), the ratio; A, the advantage; ε, the clip range; V, the value; R, the value target.
Axes: L steps of padded sequences, J sequences of a shard, S recurrent state, P parameters of the network. Per step
there are A action dimensions, O policy parameters, and Q log_probs (1, or A with --ratio per-dimension).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.models.encoders import leaf_statistics, normalize_leaf
from shmppo.parallel.columns import LossCoefficients, LossTerms
from shmppo.parallel.shared_buffers import Minibatches, ShardResults, SharedBuffers
from shmppo.ppo.minibatches import step_indices
from shmppo.spaces.distributions import Distribution


def _clip(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return x between two bounds. np.clip takes several times as long for small arrays."""
    bounded: np.ndarray = np.minimum(np.maximum(x, low), high)
    return bounded


def clipped_objective(ratio: np.ndarray, advantages: np.ndarray, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """PPO-Clip objective per step, to be maximized: min(ρA, clip(ρ, 1 − ε, 1 + ε)A).

    Its derivative is ρA, or 0 where the clipped term is smaller. This follows from ∂ρ/∂log π = ρ.

    Source: Schulman et al., arXiv 1707.06347, eq. 7.
    """
    unclipped = ratio * advantages
    clipped = _clip(ratio, 1 - clip, 1 + clip) * advantages
    return np.minimum(unclipped, clipped), unclipped * (unclipped <= clipped)


def dimension_clipped_objective(
    ratios: np.ndarray, advantages: np.ndarray, clip: float
) -> tuple[np.ndarray, np.ndarray]:
    """PPO-Clip objective per step with one ratio per action dimension, to be maximized.

        A · Π_d s·min(s·ρ_d, s·clip(ρ_d, 1 − ε, 1 + ε)),   s = sign(A)

    If the ratio of one dimension is clipped, the other dimensions keep their gradient. In `clipped_objective`,
    a clipped ratio sets the whole gradient to 0. With one action dimension, both functions are equal.

    Source: DISC, Han and Sung, ICML 2019, arXiv 1905.02363.

    Args:
        ratios: [..., D], one per action dimension.
        advantages: [...].
        clip: ε.

    Returns:
        (objective [...], derivative with respect to log π of each action dimension [..., D]). The derivative is the
        objective itself, or 0 in dimensions whose ratio is clipped.
    """
    # s·min(s·ρ_d, s·clip(ρ_d)) is ρ_d, but at most 1 + ε where A > 0, and at least 1 − ε elsewhere.
    positive = (advantages > 0)[..., np.newaxis]
    bounded = np.where(positive, np.minimum(ratios, 1 + clip), np.maximum(ratios, 1 - clip))
    objective = advantages * bounded.prod(-1)
    return objective, objective[..., np.newaxis] * (bounded == ratios)


def dual_clipped(
    objective: np.ndarray, gradient: np.ndarray, advantages: np.ndarray, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Dual clip of an objective per step: max(objective, cA) where A < 0, else the objective.

    It limits the effect of large ratios.

    Source: Ye et al., arXiv 1912.09729, eq. 3.

    Args:
        objective: [...], from `clipped_objective` or `dimension_clipped_objective`.
        gradient: its derivative, [...] or, per action dimension, [..., D].
        advantages: [...].
        limit: c > 1.

    Returns:
        (objective, gradient) after the clip. The gradient is 0 where the dual clip limits the objective.
    """
    kept = (advantages >= 0) | (objective >= limit * advantages)
    clipped = np.where(kept, objective, limit * advantages)
    return clipped, gradient * (kept if gradient.ndim == kept.ndim else kept[..., np.newaxis])


def unclipped_objective(ratio: np.ndarray, advantages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Objective of PPO-Penalty per step, without the penalty β·KL, to be maximized: ρA. Its derivative is also ρA.

    Source: Schulman et al., arXiv 1707.06347, eq. 8.
    """
    objective = ratio * advantages
    return objective, objective


def value_loss(
    values: np.ndarray, targets: np.ndarray, old_values: np.ndarray, clip: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Value loss per step: ½(V − R)². Its derivative is V − R.

    With `clip` it is ½ max((V − R)², (V_clip − R)²), where V_clip = V_old + clip(V − V_old, −ε, ε). The derivative is 0
    where |V − V_old| > ε and the clipped term is larger.

    Source: the `ppo2` implementation in OpenAI Baselines.
    """
    error = values - targets
    squared = error * error
    if clip is None:
        return 0.5 * squared, error
    change = values - old_values
    # Written this way, V_clip is exactly V within the clip range. V_old + (V − V_old) may differ by a rounding error,
    # and the comparison below would drop the derivative.
    clipped_error = error - (change - _clip(change, -clip, clip))
    clipped = clipped_error * clipped_error
    return 0.5 * np.maximum(squared, clipped), error * (squared >= clipped)


def kl_estimate(log_ratio: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Estimate of KL(π_old ‖ π) per step in nats: (ρ − 1) − log ρ.

    It is unbiased and never negative.

    Source: the estimator k3 in J. Schulman, "Approximating KL Divergence", 2020.
    """
    return ratio - 1 - log_ratio


@dataclass(frozen=True)
class GradientInputs:
    """The tensors that the network reads, on one device. The first two axes of the rollout are flattened."""

    obs: tuple[Tensor, ...]
    """[T·N, …] per leaf, as stored."""
    sequence_state: Tensor
    """[C·N, S], stored recurrent states."""
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
            sequence_state=torch.from_numpy(rollout.sequence_state).flatten(0, 1),
            obs_mean=torch.from_numpy(published.obs_mean),
            obs_scale=torch.from_numpy(published.obs_scale),
            weights=torch.from_numpy(published.weights),
        )


@dataclass(frozen=True)
class _Loss:
    """The loss of a shard with n steps, as sums over valid steps."""

    by_params: np.ndarray
    """Derivative with respect to the policy parameters, [n, O]."""
    by_values: np.ndarray
    """Derivative with respect to the values, [n]."""
    terms: np.ndarray
    """`LossTerms` as an array."""
    max_log_ratio: float
    """Largest |log ratio|."""


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
            inputs: on the device of `model`. None: views of the shared memory.
            gradients: [G, P], where to write gradients, on the device of `model`. None: in shared memory.
        """
        self._config = config
        self._distribution = distribution
        self._model = model
        self._minibatches: Minibatches = buffers.minibatches
        self._results: ShardResults = buffers.shard_results
        self._inputs = GradientInputs.of(buffers) if inputs is None else inputs
        rollout, steps = buffers.rollout, config.rollout_steps * config.num_envs
        self._actions = rollout.actions.reshape(steps, -1)
        self._policy_params = rollout.policy_params.reshape(steps, -1)  # of the policy that acted
        flat_gradients = torch.from_numpy(self._results.gradients) if gradients is None else gradients
        names = [name for name, _ in model.named_parameters()]
        self._gradients = [dict(zip(names, parameter_views(shard, model), strict=True)) for shard in flat_gradients]
        self._trunk_parameters = list(model.trunks.parameters())
        self._trunk_gradients = [
            [view for name, view in views.items() if name.startswith("trunks.")] for views in self._gradients
        ]
        mean, scale = self._inputs.obs_mean, self._inputs.obs_scale
        self._statistics = leaf_statistics(model.observation.normalized_slices, mean, scale, config.normalize_obs)
        self._device = self._inputs.weights.device

    def compute(self, epoch: int, minibatch: int, shards: Iterable[int]) -> None:
        """Write the gradients, loss terms, and largest |log ratio| of some shards of a minibatch.

        Gradients and loss terms are sums over the valid steps of a shard, divided by the valid steps of the minibatch
        over all ranks, so their sum over shards and ranks is the mean over the minibatch.

        Args:
            shards: indices of the shards.
        """
        for shard in shards:
            self._compute(epoch, minibatch, shard)

    def _compute(self, epoch: int, minibatch: int, shard: int) -> None:
        steps = int(self._minibatches.steps[epoch, minibatch])
        sequences = self._sequences(epoch, minibatch, shard)
        if not len(sequences):  # the minibatch has fewer sequences than shards
            torch._foreach_zero_(list(self._gradients[shard].values()))
            self._results.loss_terms[shard] = 0.0
            self._results.max_log_ratio[shard] = 0.0
            return
        indices, valid = self._step_indices(sequences)
        features, obs = self._features(sequences, indices, valid.shape)
        with torch.no_grad():
            params, values = self._model.heads(features, obs)
            # The loss is computed on the CPU in any case: it is short, and NumPy needs less time for it than torch.
            host_params, host_values = params.flatten(0, 1).cpu().numpy(), values.flatten().cpu().numpy()
            loss = self._loss(host_params, host_values, indices, valid.reshape(-1), epoch, minibatch)
            by_outputs = (self._to_device(loss.by_params / steps), self._to_device(loss.by_values / steps))
            by_features = self._model.heads_backward(features, *by_outputs, self._gradients[shard])
        self._trunks_backward(features, by_features, self._trunk_gradients[shard])
        self._results.loss_terms[shard] = loss.terms / steps
        self._results.max_log_ratio[shard] = loss.max_log_ratio

    def _trunks_backward(self, features: list[Tensor], by_features: list[Tensor], out: list[Tensor]) -> None:
        """Write the gradients of the trunks, given the derivatives of the loss with respect to their features."""
        if not self._trunk_parameters:  # no core, and no layer in the encoder
            return
        # This scalar has the derivatives `by_features`. Passing them to autograd as arguments would make torch import
        # sympy, which needs 60 MB per process.
        products = [torch.dot(x.flatten(), grad.flatten()) for x, grad in zip(features, by_features, strict=True)]
        torch._foreach_copy_(out, list(torch.autograd.grad(sum(products[1:], products[0]), self._trunk_parameters)))

    def _features(
        self, sequences: np.ndarray, indices: np.ndarray, shape: tuple[int, ...]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run the trunks. --autocast bf16 applies to their matrix products.

        Args:
            sequences: [J, 4].
            indices: [L·J], of the steps.
            shape: (L, J).

        Returns:
            (features [L, J, F] of each trunk, observations [L, J, …] per leaf).
        """
        obs, states = self._observations(indices, shape), self._initial_states(sequences)
        bf16 = self._config.autocast == "bf16"
        with torch.autocast(self._device.type, torch.bfloat16) if bf16 else contextlib.nullcontext():
            features, _ = self._model.features(obs, states)
        return [part.float() for part in features], obs

    @torch.no_grad()
    def policy(self, sequences: np.ndarray) -> tuple[Tensor, Tensor]:
        """Compute the policy parameters at the steps of some sequences, with the current weights.

        Args:
            sequences: [J, 4].

        Returns:
            (policy parameters [L, J, O], valid bool [L, J]).
        """
        indices, valid = self._step_indices(sequences)
        params, _ = self._model.heads(*self._features(sequences, indices, valid.shape))
        return params, torch.from_numpy(valid)

    def _to_device(self, array: np.ndarray) -> Tensor:
        """Copy to the device. Memory of torch is aligned in the same way in every process, that of NumPy is not."""
        return torch.from_numpy(array).to(self._device, copy=True)

    def _step_indices(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices [L·J] of the steps of padded sequences, and whether they are valid, bool [L, J]."""
        config = self._config
        indices, valid = step_indices(
            sequences, sequence_steps=config.sequence_steps, num_envs=config.num_envs, burn_in=config.burn_in
        )
        return indices.reshape(-1), valid

    def _observations(self, indices: np.ndarray, shape: tuple[int, ...]) -> list[Tensor]:
        """Return the network's input at the steps with these indices [L·J]: [L, J, …] per leaf."""
        chosen = self._to_device(indices)
        return [
            normalize_leaf(leaf.index_select(0, chosen), statistics).view(*shape, *leaf.shape[1:])
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

    @np.errstate(over="ignore", invalid="ignore")  # the learner checks that losses and gradients are finite
    def _loss(
        self, params: np.ndarray, values: np.ndarray, indices: np.ndarray, valid: np.ndarray, epoch: int, minibatch: int
    ) -> _Loss:
        """Compute the loss terms and the derivatives of the loss, as sums over valid steps. n = L·J below.

        Args:
            params: [n, O], policy parameters.
            values: [n].
            indices: [n], of the steps.
            valid: bool [n].
        """
        config, distribution = self._config, self._distribution
        coefficients = LossCoefficients(*self._minibatches.coefficients.tolist())
        mean, scale = self._minibatches.advantage_scale[epoch, minibatch].tolist()
        weights = valid.astype(np.float32)
        actions, targets = self._actions[indices], self._minibatches.step_targets[indices]
        advantages = (targets[:, 0] - mean) * scale * weights
        log_prob = distribution.log_prob(params, actions)
        if config.ratio == "joint":
            log_prob = np.add.reduce(log_prob, 1, keepdims=True)
        # Set log ρ of padding to 0 before the exponential. Afterwards, 0 times an infinite ρ would be NaN.
        log_ratios = (log_prob - targets[:, 3:]) * weights[:, np.newaxis]
        ratios = np.exp(log_ratios)
        log_ratio = np.add.reduce(log_ratios, 1)
        ratio = ratios[:, 0] if config.ratio == "joint" else np.exp(log_ratio)
        objective, by_log_prob = self._objective(ratios, advantages, coefficients.clip_range)
        by_params = distribution.log_prob_grad(params, actions, -by_log_prob.reshape(len(params), -1))
        value_clip = coefficients.clip_range if config.value_clip else None
        value_losses, by_values = value_loss(values, targets[:, 1], targets[:, 2], value_clip)
        kl = kl_estimate(log_ratio, ratio)
        if coefficients.entropy_coef:
            by_params -= distribution.entropy_grad(params) * (weights * coefficients.entropy_coef)[:, np.newaxis]
        if config.objective == "penalty":
            old_params = self._policy_params[indices]
            kl = distribution.kl(old_params, params) * weights
            objective = objective - coefficients.penalty_coef * kl
            by_params += distribution.kl_grad(old_params, params) * (weights * coefficients.penalty_coef)[:, np.newaxis]
        terms = LossTerms(
            policy_loss=-float(np.add.reduce(objective)),
            value_loss=float(np.add.reduce(value_losses * weights)),
            entropy=float(np.add.reduce(distribution.entropy(params) * weights)),
            approx_kl=float(np.add.reduce(kl)),
            clip_fraction=np.count_nonzero(np.abs(ratios - 1) > coefficients.clip_range) / ratios.shape[1],
        )
        largest = float(np.maximum.reduce(np.abs(log_ratio)))
        return _Loss(by_params, by_values * weights * config.value_coef, np.array(terms), largest)

    def _objective(self, ratios: np.ndarray, advantages: np.ndarray, clip: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute the objective [n] per step, to be maximized, and its derivative with respect to log π, [n] or [n, Q].

        Args:
            ratios: [n, Q].
            advantages: [n], 0 at steps that are not valid.
            clip: ε.
        """
        config = self._config
        if config.ratio == "per-dimension":
            objective, gradient = dimension_clipped_objective(ratios, advantages, clip)
        elif config.objective == "clip":
            objective, gradient = clipped_objective(ratios[:, 0], advantages, clip)
        else:
            objective, gradient = unclipped_objective(ratios[:, 0], advantages)
        if config.dual_clip is not None:
            objective, gradient = dual_clipped(objective, gradient, advantages, config.dual_clip)
        return objective, gradient
