"""A user-defined network that replaces the encoders and the recurrent core, named as `--network module:factory`.

`factory(shapes, config)` returns an `nn.Module`. `shapes` maps the name of each observation leaf ("obs", or
"obs/camera") to the shape of one network input, for those leaves that the network sees. The module must have:

- `features`: F, the width of its output.
- `state_size`: size of the recurrent state per environment; 0 if it has none.
- `forward(obs, first, state) → (features, state)`. It processes whole sequences, with time as the first axis.

Arguments and results of `forward`, for L steps of J sequences:

- `obs`: maps each leaf name to float32 [L, J, *shape]. Vectors are normalized, codes are one-hot, and images are
  [channels, height, width] in 0 … 1.
- `first`: bool [L, J], true where an episode starts. It can be true only at the first step of a sequence, and the state
  is zero there. An all-zero state is treated as an episode start. Without a recurrent state, `first` is always false.
- `state`: [J, state_size], the state before the first step.
- Returns features [L, J, F] and the state after the last step [J, state_size].

Every parameter must be trainable, and the features must depend on it. Constants are buffers with persistent=False. The
module must compute each sequence independently of the others. It must compute the same function in training and in
acting, so dropout and batch statistics are not allowed. Sequences shorter than L are padded at their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.models.user_module import UserModule

_PROBE_STEPS, _PROBE_SEQUENCES = 2, 8  # L and J of the forward pass that checks a new network


class CustomNetwork(UserModule):
    """The user's module in place of `Trunk`: it maps observations to features.

    Attributes:
        features: F, width of the output.
        state_size: size of the recurrent state.
    """

    option = "network"

    def _check(self, config: TrainConfig) -> None:
        """Check the attributes, the parameters, and a forward pass. Raises ConfigError."""
        sizes: list[Any] = [getattr(self.module, name, None) for name in ("features", "state_size")]
        sized = all(isinstance(size, Integral) for size in sizes)
        self._require(sized, "must return an nn.Module with the attributes features and state_size, two integers")
        self.features, self.state_size = map(int, sizes)
        self._require(
            not self.state_size or config.recurrent,
            f"has a recurrent state of size {self.state_size}, but --core none is set; remove --core none, or set "
            "state_size to 0",
        )
        self._check_forward(
            lambda stored: self(stored, torch.zeros(_PROBE_SEQUENCES, self.state_size)),
            (_PROBE_STEPS, _PROBE_SEQUENCES),
            [(_PROBE_STEPS, _PROBE_SEQUENCES, self.features), (_PROBE_SEQUENCES, self.state_size)],
            "features and state",
        )

    def forward(self, obs: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Map sequences of observations to features.

        Args:
            obs: one tensor [L, J, …] per leaf, as stored; vectors normalized.
            state: [J, S], before the first step.

        Returns:
            (features [L, J, F], state after the last step [J, S]).
        """
        steps, sequences = obs[0].shape[:2]
        rows = self._inputs([stored.flatten(0, 1) for stored in obs])
        inputs = {name: torch.unflatten(x, 0, (steps, sequences)) for name, x in rows.items()}
        # An all-zero state marks an episode start. The rule is the same in acting and in learning.
        starts = (state == 0).all(-1).unsqueeze(0)
        if not self.state_size:
            starts = torch.zeros_like(starts)
        first = torch.cat([starts, starts.new_zeros(steps - 1, sequences)])
        features, after = self.module(inputs, first, state)
        return features.float(), after  # float64 constants may have changed their type
