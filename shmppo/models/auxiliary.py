"""An auxiliary loss from a user-defined module, named as `--auxiliary module:factory`.

`factory(shapes, config, features, actions)` returns an `nn.Module`. `shapes` maps the name of each observation leaf
("obs", or "obs/camera") to the shape of one network input, `features` is F, the width of the actor's features, and
`actions` is A, the size of an action. `forward(features, obs, actions, returns)` returns the loss of each step, [R].

Arguments of `forward`, for the R steps of one gradient shard that --burn-in does not exclude:

- `features`: float32 [R, F], what the actor's policy head reads. The gradient of the loss flows into them.
- `obs`: maps each leaf name to float32 [R, *shape]. Vectors are normalized, codes are one-hot, and images are
  [channels, height, width] in 0 … 1. Parts that --actor-obs or --critic-obs leave out are included.
- `actions`: float32 [R, A], as sampled, before clipping or squashing. A Discrete action is one index.
- `returns`: float32 [R], the targets of the value loss.

The update adds --auxiliary-coef times the mean over the steps of a minibatch to its loss. The rules for parameters,
buffers, and randomness are those of `shmppo.models.custom`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.user_module import UserModule

_PROBE_ROWS = 8  # R of the forward pass that checks a new module


class AuxiliaryLoss(UserModule):
    """The user's module, which maps the features of steps to losses."""

    option = "auxiliary"

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
