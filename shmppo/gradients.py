"""Where a minibatch's gradient comes from: the loss of one shard, into that shard's slab.

A minibatch is G shards of whole rows. The shards are the same whoever computes them, and the learner adds
them in shard order, so central and sharded learning give the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shmppo.config import TrainConfig
from shmppo.distributions import Distribution
from shmppo.layout import SHARD_STATISTICS, Arena
from shmppo.loss import clipped_objective, clipped_objective_slope, kl_estimate, value_loss, value_loss_slope
from shmppo.model import ActorCritic, views_of
from shmppo.normalize import normalize_observations
from shmppo.sequences import ROW_FIELDS, step_indices

ROW_MULTIPLE = 8  # rows per shard are padded to this: each new shape costs the fused LSTM 2–4 ms once


class ShardGradients:
    """Computes gradients of shards of the plan in `arena` with the weights that `model` has."""

    def __init__(self, config: TrainConfig, distribution: Distribution, model: ActorCritic, arena: Arena) -> None:
        self._config = config
        self._distribution = distribution
        self._model = model
        self._arena = arena
        self._parameters = list(model.parameters())
        self._slabs = [views_of(slab, model) for slab in arena.tensor("gradients")]
        self._obs = arena.tensor("obs").flatten(0, 1)
        self._actions = arena.tensor("actions").flatten(0, 1)
        self._states = arena.tensor("row_state").flatten(0, 1)
        self._targets = arena.tensor("step_targets")

    def compute(self, epoch: int, minibatch: int, shard: int) -> None:
        """Write the shard's gradient [P] and its SHARD_STATISTICS.

        Both are sums over the shard's real steps divided by the minibatch's steps, so that adding the
        shards gives the minibatch's means.
        """
        steps = int(self._arena.array("minibatch_steps")[epoch, minibatch])
        rows = self._rows(epoch, minibatch, shard)
        flat, real = self._steps(rows)
        weights, shape = real.float(), real.shape  # [L, R]
        obs = self._normalized(self._obs.index_select(0, flat)).view(*shape, -1)
        actions = self._actions.index_select(0, flat).view(*shape, -1)
        targets = self._targets.index_select(0, flat).view(*shape, -1)

        params, values, _ = self._model(obs, self._row_states(rows))
        log_prob = self._distribution.log_prob(params, actions).sum(-1)
        with torch.set_grad_enabled(self._config.entropy_coef > 0):
            entropy = self._distribution.entropy(params)
        outputs = [log_prob, values, entropy] if self._config.entropy_coef > 0 else [log_prob, values]
        with torch.no_grad():
            slopes, statistics = self._slopes(log_prob, values, entropy, targets, weights, epoch, minibatch)
        # One scalar with these slopes: handing them to autograd directly makes torch import sympy, 60 MB a process.
        loss = torch.stack([torch.dot(o.flatten(), s.flatten()) for o, s in zip(outputs, slopes, strict=False)]).sum()
        gradients = torch.autograd.grad(loss / steps, self._parameters)
        torch._foreach_copy_(self._slabs[shard], list(gradients))
        statistics[:-2] /= steps
        self._arena.array("shard_statistics")[shard] = statistics

    @torch.no_grad()
    def policy(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The policy with the weights as they are at the steps of rows [R, 4].

        Returns:
            (policy parameters [L, R, P], which of the steps are real, bool [L, R]).
        """
        flat, real = self._steps(rows)
        obs = self._normalized(self._obs.index_select(0, flat)).view(*real.shape, -1)
        return self._model(obs, self._row_states(rows))[0], real

    def _steps(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Flat indices [L·R] into [T·N, …] of the steps of padded rows, and which are real, bool [L, R]."""
        indices, real = step_indices(rows, row_steps=self._config.row_steps, num_envs=self._config.num_envs)
        return torch.from_numpy(indices.reshape(-1)), torch.from_numpy(real)

    def _rows(self, epoch: int, minibatch: int, shard: int) -> np.ndarray:
        """The shard's rows [R, 4], R padded to ROW_MULTIPLE by rows of length 0."""
        begin, end = self._arena.array("bounds")[epoch, minibatch, shard : shard + 2].tolist()
        count = end - begin
        rows = np.zeros((count + -count % ROW_MULTIPLE, len(ROW_FIELDS)), np.int64)
        rows[:count] = self._arena.array("rows")[self._arena.array("order")[epoch, begin:end]]
        return rows

    def _row_states(self, rows: np.ndarray) -> Tensor:
        """Initial states [R, S]: the stored ones, zero where a row begins an episode."""
        if not self._model.state_size:
            return torch.zeros(len(rows), 0)
        begins = torch.from_numpy(rows[:, 3] < 0)
        place = np.maximum(rows[:, 3], 0) * self._config.num_envs + rows[:, 1]
        states = self._states.index_select(0, torch.from_numpy(place))
        return states.masked_fill_(begins.unsqueeze(-1), 0.0)

    def _normalized(self, obs: Tensor) -> Tensor:
        if not self._config.normalize_obs:
            return obs
        return normalize_observations(obs, self._arena.tensor("obs_mean"), self._arena.tensor("obs_scale"))

    def _slopes(
        self,
        log_prob: Tensor,
        values: Tensor,
        entropy: Tensor,
        targets: Tensor,
        weights: Tensor,
        epoch: int,
        minibatch: int,
    ) -> tuple[list[Tensor], np.ndarray]:
        """Derivatives of the loss, summed over real steps, by log π, V and entropy; and its statistics, likewise.

        All tensors are [L, R], targets [L, R, 4]; weights are 1 at real steps and 0 in padding.
        """
        config = self._config
        clip = float(self._arena.array("clip_range")[0])
        value_clip = clip if config.value_clip else None
        mean, scale = self._arena.array("advantage_scale")[epoch, minibatch].tolist()
        old_log_prob, advantages, value_targets, old_values = targets.unbind(-1)
        advantages = (advantages - mean) * scale * weights
        # Padding gets log ρ = 0 before the exponential: a weight after it could meet an infinity.
        log_ratio = (log_prob - old_log_prob) * weights
        ratio = log_ratio.exp()
        slopes = [
            -clipped_objective_slope(ratio, advantages, clip),
            value_loss_slope(values, value_targets, old_values, value_clip) * weights * config.value_coef,
            weights * -config.entropy_coef,
        ]
        per_step = torch.stack(  # in the order of SHARD_STATISTICS
            [
                -clipped_objective(ratio, advantages, clip),
                value_loss(values, value_targets, old_values, value_clip) * weights,
                entropy * weights,
                kl_estimate(log_ratio, ratio),
                ((ratio - 1).abs() > clip).float(),
                log_ratio.abs(),
                weights,
            ]
        ).flatten(1)
        statistics = per_step.sum(-1)
        statistics[-2] = per_step[-2].max()
        return slopes, statistics.double().numpy()


assert SHARD_STATISTICS[-2:] == ("max_abs_log_ratio", "steps"), "these two are not divided by the steps"
