"""Where a minibatch's gradient comes from: the loss of one shard, into that shard's slab.

A minibatch is G shards of whole rows. The shards are the same whoever computes them, and the learner adds
them in shard order, so central and sharded learning give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, Observations, views_of
from shmppo.models.distributions import Distribution
from shmppo.models.normalization import leaf_statistics, normalize_leaf
from shmppo.parallel.shared_buffers import SHARD_STATISTICS, STEP_TARGETS, SharedBuffers, UpdateNumbers
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

_FIRST_LOG_PROB = STEP_TARGETS.index("log_prob")


class _Outputs(NamedTuple):
    """What of a shard's policy and critic the loss is a function of, each [L, R]."""

    log_prob: Tensor
    """[L, R, Q]: of the action, or of each of its dimensions with --ratio per-dimension."""
    values: Tensor
    entropy: Tensor
    """Without a graph where it has no weight."""
    kl: Tensor | None
    """KL(old ‖ new) in closed form, of --objective penalty only."""


class ShardGradients:
    """Computes gradients of shards of the plan in `arena` with the weights that `model` has."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, model: ActorCritic, arena: SharedBuffers
    ) -> None:
        self._config = config
        self._distribution = distribution
        self._model = model
        self._arena = arena
        self._parameters = list(model.parameters())
        self._slabs = [views_of(slab, model) for slab in arena.tensor("gradients")]
        spec = model.observation
        self._obs = [arena.tensor(leaf.field).flatten(0, 1) for leaf in spec.leaves]
        self._statistics = leaf_statistics(
            spec.normalized, arena.tensor("obs_mean"), arena.tensor("obs_scale"), config.normalize_obs
        )
        self._actions = arena.tensor("actions").flatten(0, 1)
        self._old_params = arena.tensor("policy_params").flatten(0, 1)
        self._states = arena.tensor("sequence_state").flatten(0, 1)
        self._targets = arena.tensor("step_targets")
        self._device = self._targets.device

    def compute(self, epoch: int, minibatch: int, shards: Iterable[int]) -> None:
        """Write the gradients [P] of some shards of a minibatch, and their SHARD_STATISTICS.

        Both are sums over the shard's real steps divided by the minibatch's steps, so that adding the
        shards gives the minibatch's means.
        """
        for shard in shards:
            self._compute(epoch, minibatch, shard)

    def _compute(self, epoch: int, minibatch: int, shard: int) -> None:
        steps = int(self._arena.array("minibatch_steps")[epoch, minibatch])
        rows = self._rows(epoch, minibatch, shard)
        if not len(rows):  # a minibatch of few, long rows
            torch._foreach_zero_(self._slabs[shard])
            self._arena.array("shard_statistics")[shard] = 0.0
            return
        flat, real = self._steps(rows)
        weights, shape = real.float(), real.shape  # [L, R]
        obs = self._observations(flat, shape)
        targets = self._targets.index_select(0, flat).view(*shape, -1)

        outputs = self._forward(obs, self._row_states(rows), flat)
        with torch.no_grad():
            slopes, statistics = self._slopes(outputs, targets, weights, epoch, minibatch)
        # One scalar with these slopes: handing them to autograd directly makes torch import sympy, 60 MB a process.
        pairs = [(o, s) for o, s in zip(outputs, slopes, strict=True) if o is not None and o.requires_grad]
        loss = torch.stack([torch.dot(o.flatten(), s.flatten()) for o, s in pairs]).sum()
        gradients = torch.autograd.grad(loss / steps, self._parameters)
        torch._foreach_copy_(self._slabs[shard], list(gradients))
        statistics[:-2] /= steps
        self._arena.array("shard_statistics")[shard] = statistics

    def _forward(self, obs: Observations, states: Tensor, flat: Tensor) -> _Outputs:
        """Outputs for observations [L, R, …] per leaf from states [R, S]; `flat` [L·R] are the steps' indices."""
        config, distribution = self._config, self._distribution
        params, values = self._network(obs, states)
        actions = self._actions.index_select(0, flat).view(*params.shape[:2], -1)
        log_prob = distribution.log_prob(params, actions)
        if config.ratio == "joint":
            log_prob = log_prob.sum(-1, keepdim=True)
        with torch.set_grad_enabled(config.entropy_coef > 0):
            entropy = distribution.entropy(params)
        kl = None
        if config.objective == "penalty":
            kl = distribution.kl(self._old_params.index_select(0, flat).view(params.shape), params)
        return _Outputs(log_prob, values, entropy, kl)

    def _network(self, obs: Observations, states: Tensor) -> tuple[Tensor, Tensor]:
        """Policy parameters [L, R, P] and values [L, R]; only the network's own products are in bfloat16."""
        if self._config.autocast == "none":
            params, values, _ = self._model(obs, states)
            return params, values
        with torch.autocast(states.device.type, torch.bfloat16):
            params, values, _ = self._model(obs, states)
        return params.float(), values.float()

    @torch.no_grad()
    def policy(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The policy with the weights as they are at the steps of rows [R, 4].

        Returns:
            (policy parameters [L, R, P], which of the steps are real, bool [L, R]).
        """
        flat, real = self._steps(rows)
        return self._network(self._observations(flat, real.shape), self._row_states(rows))[0], real

    def _steps(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Flat indices [L·R] into [T·N, …] of the steps of padded rows, and which are real, bool [L, R]."""
        config = self._config
        indices, real = step_indices(
            rows, sequence_steps=config.sequence_steps, num_envs=config.num_envs, burn_in=config.burn_in
        )
        return torch.from_numpy(indices.reshape(-1)).to(self._device), torch.from_numpy(real).to(self._device)

    def _observations(self, flat: Tensor, shape: torch.Size) -> list[Tensor]:
        """What the network is shown at the steps of flat indices [L·R], per leaf [L, R, …]."""
        return [
            normalize_leaf(leaf.index_select(0, flat), statistics).unflatten(0, shape)
            for leaf, statistics in zip(self._obs, self._statistics, strict=True)
        ]

    def _rows(self, epoch: int, minibatch: int, shard: int) -> np.ndarray:
        """The shard's rows [R, 4]."""
        begin, end = self._arena.array("bounds")[epoch, minibatch, shard : shard + 2].tolist()
        return self._arena.array("rows")[self._arena.array("order")[epoch, begin:end]].astype(np.int64)

    def _row_states(self, rows: np.ndarray) -> Tensor:
        """Initial states [R, S]: the stored ones, zero where a row begins an episode."""
        if not self._model.state_size:
            return torch.zeros(len(rows), 0, device=self._device)
        begins = torch.from_numpy(rows[:, 3] < 0).to(self._device)
        place = np.maximum(rows[:, 3], 0) * self._config.num_envs + rows[:, 1]
        states = self._states.index_select(0, torch.from_numpy(place).to(self._device))
        return states.masked_fill_(begins.unsqueeze(-1), 0.0)

    def _slopes(
        self, outputs: _Outputs, targets: Tensor, weights: Tensor, epoch: int, minibatch: int
    ) -> tuple[list[Tensor], np.ndarray]:
        """Derivatives of the loss, summed over real steps, by each of the outputs; and its statistics, likewise.

        targets are [L, R, columns of "step_targets"]; weights [L, R] are 1 at real steps and 0 in padding.
        """
        config = self._config
        numbers = UpdateNumbers(*self._arena.array("update_numbers").tolist())
        value_clip = numbers.clip_range if config.value_clip else None
        mean, scale = self._arena.array("advantage_scale")[epoch, minibatch].tolist()
        advantages, value_targets, old_values = targets[..., :_FIRST_LOG_PROB].unbind(-1)
        advantages = (advantages - mean) * scale * weights
        # Padding gets log ρ = 0 before the exponential: a weight after it could meet an infinity.
        log_ratios = (outputs.log_prob - targets[..., _FIRST_LOG_PROB:]) * weights.unsqueeze(-1)
        log_ratio = log_ratios.sum(-1)
        ratio = log_ratio.exp()
        ratios = ratio.unsqueeze(-1) if config.ratio == "joint" else log_ratios.exp()
        objective, slope = self._objective(ratios, advantages, numbers.clip_range)
        critic = (outputs.values, value_targets, old_values, value_clip)
        slopes = [
            -slope,
            value_loss_grad(*critic) * weights * config.value_coef,
            weights * -numbers.entropy_coef,
            weights * numbers.penalty_coef,
        ]
        if outputs.kl is None:
            kl = kl_estimate(log_ratio, ratio)
        else:
            kl = outputs.kl * weights
            objective = objective - numbers.penalty_coef * kl
        per_step = torch.stack(  # in the order of SHARD_STATISTICS
            [
                -objective,
                value_loss(*critic) * weights,
                outputs.entropy * weights,
                kl,
                ((ratios - 1).abs() > numbers.clip_range).float().mean(-1),
                log_ratio.abs(),
                weights,
            ]
        ).flatten(1)
        statistics = per_step.sum(-1)
        statistics[-2] = per_step[-2].max()
        return slopes, statistics.double().cpu().numpy()

    def _objective(self, ratios: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """What is maximized per step [L, R], and its derivatives by log π [L, R, Q]; ratios are [L, R, Q]."""
        config = self._config
        if config.ratio == "per-dimension":
            objective = dimension_clipped_objective(ratios, advantages, clip)
            slope = dimension_clipped_objective_grad(ratios, advantages, clip)
        elif config.objective == "clip":
            ratio = ratios.squeeze(-1)
            objective = clipped_objective(ratio, advantages, clip)
            slope = clipped_objective_grad(ratio, advantages, clip)
        else:
            objective = slope = unclipped_objective(ratios.squeeze(-1), advantages)
        if config.dual_clip is not None:
            slope = dual_clipped_grad(slope, objective, advantages, config.dual_clip)
            objective = dual_clipped(objective, advantages, config.dual_clip)
        return objective, slope


assert SHARD_STATISTICS[-2:] == ("max_abs_log_ratio", "steps"), "these two are not divided by the steps"
