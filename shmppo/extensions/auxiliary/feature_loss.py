"""The module of --auxiliary, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.actor_critic import ActorCritic, parameter_views
from shmppo.models.user_module import UserModule
from shmppo.ppo.torch_gradients import StoredObservations

NAME = "auxiliary"
"""Of the option, and of the module in `ActorCritic`."""
_PROBE_ROWS = 8  # R of the forward pass that checks a new module


class AuxiliaryLoss(UserModule):
    """The user's module that maps the features of steps to losses.

    `factory(shapes, config, features, actions)` returns an `nn.Module`. `shapes` maps the name of each observation leaf
    ("obs", or "obs/camera") to the shape of one network input, `features` is F, the width of the actor's features, and
    `actions` is A, the size of an action. `forward(features, obs, actions, returns)` returns the loss of each step [R].

    Arguments of `forward`, for the R steps of one gradient shard:

    - `features`: float32 [R, F], what the actor's policy head reads. The gradient of the loss flows into them.
    - `obs`: maps each leaf name to float32 [R, *shape]. Vectors are normalized, codes are one-hot, and images are
      [channels, height, width] in 0 … 1. Parts that --actor-obs or --critic-obs leave out are included.
    - `actions`: float32 [R, A], as sampled, before clipping or squashing. A Discrete action is one index.
    - `returns`: float32 [R], the targets of the value loss.

    The update adds the mean of these losses over the steps of a minibatch to its own loss. The rules for parameters,
    buffers, and randomness are those of `CustomNetwork`.
    """

    option = NAME

    def _check(self, config: TrainConfig) -> None:
        """Check the parameters and a forward pass. Raises ConfigError."""
        width, actions = self._sizes
        features = torch.ones(_PROBE_ROWS, width, requires_grad=True)
        others = torch.zeros(_PROBE_ROWS, actions), torch.zeros(_PROBE_ROWS)
        self._check_forward(
            lambda stored: [self(features, stored, *others)], (_PROBE_ROWS,), [(_PROBE_ROWS,)], "losses", [features]
        )

    def forward(self, features: Tensor, obs: Sequence[Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        """Compute the loss of each step, [R]. obs: [R, …] per leaf, as stored; vectors normalized."""
        return cast(Tensor, self.module(features, self._inputs(obs), actions, returns))


class AuxiliaryGradients:
    """Computes the auxiliary loss with the current weights of its module."""

    metric = "auxiliary_loss"

    def __init__(self, model: ActorCritic, observations: StoredObservations, gradients: Tensor) -> None:
        """Create views. gradients: [G, P], where to write those of the module's parameters."""
        self._module = cast(AuxiliaryLoss, model.get_submodule(NAME))
        self._parameters = list(self._module.parameters())
        begin = len(model.network_parameters)
        self._gradients = [parameter_views(shard, model)[begin:] for shard in gradients]
        self._observations = observations
        self._leaves = len(model.observation.network_leaves)  # without an action mask, which is the last leaf

    def compute(
        self, shard: int, features: Tensor, index: Tensor, actions: Tensor, returns: Tensor, counts: Tensor, steps: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the gradients of the module's parameters for a shard.

        Args:
            features: [R, F], of the actor, at the steps of the shard.
            index: int64 [R], the index of each step in arrays [T·N, …].
            actions: [R, A].
            returns: [R], value targets.
            counts: bool [R], whether a step counts. The others are padding.
            steps: valid steps of the minibatch.

        Returns:
            (losses [R], the derivatives of the loss of the minibatch with respect to the features [R, F]).
        """
        if not len(index):  # the minibatch has fewer sequences than shards
            for view in self._gradients[shard]:
                view.zero_()
            return returns, features  # both are empty
        seen = features.detach().requires_grad_()
        losses = self._module(seen, self._observations.at(index)[: self._leaves], actions, returns)
        total = torch.where(counts, losses, 0).sum() * (1 / steps)
        by_features, *gradients = torch.autograd.grad(total, [seen, *self._parameters], materialize_grads=True)
        for view, gradient in zip(self._gradients[shard], gradients, strict=True):
            view.copy_(gradient.detach())  # in torch 2.6, materialized zeros require gradients
        return losses.detach().float(), by_features.detach()


MODULE, GRADIENTS = AuxiliaryLoss, AuxiliaryGradients
