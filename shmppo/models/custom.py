"""A network of the user's own between observations and heads, named as `--network module:factory`.

`factory(shapes, config)` returns an `nn.Module` with

- `features`: F, width of its output,
- `state_size`: numbers of recurrent state per environment (0 for none),
- `forward(obs, first, state) → (features, state)`: whole rows, time first. obs: a mapping of each leaf of the
  observation ("obs", or "obs/camera" …) to float32 [L, R, *shape]: vectors normalized, Discrete one-hot, images
  [C, height, width] in 0 … 1. first: bool [L, R], an episode begins with the step; that is at a row's start or nowhere,
  and the state is zeros there (a state of nothing but zeros is taken for that; a network without a state is told of
  none). state: [R, state_size] before the first step. Returned: features [L, R, F] and the state after the last step.

`shapes` maps the same names to the shapes behind [L, R]. Every parameter must be learned, and features depend on it
(constants are buffers with persistent=False). The module must compute each row by itself, in the same way in training
and in acting: no dropout, no batch statistics. Rows shorter than L are padded at their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from shmppo.config.plugins import load_object
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.observations import ObservationSpec, input_shape, network_input

_L, _R = 2, 8  # steps and rows that a network is tried with


class CustomNetwork(nn.Module):
    """The user's module in the place of encoders and core: observations to features."""

    def __init__(self, config: TrainConfig, observation: ObservationSpec) -> None:
        """Raises ConfigError for a module that cannot be made or does not keep to the signature."""
        super().__init__()
        self._where = f"--network {config.network}"
        self._leaves = observation.shown
        factory = load_object(cast(str, config.network), "--network")
        try:
            module = factory({leaf.field: input_shape(leaf) for leaf in self._leaves}, config)
        except Exception as error:  # whatever the user's code raises
            raise ConfigError(f"{self._where} could not be made: {error!r}") from error
        if not isinstance(module, nn.Module) or not {"features", "state_size"} <= set(dir(module)):
            raise ConfigError(f"{self._where} must give an nn.Module with the attributes features and state_size")
        self.module = module
        self.features = int(cast(int, module.features))
        self.state_size = int(cast(int, module.state_size))
        self._check(config)

    def _check(self, config: TrainConfig) -> None:
        if self.state_size and not config.recurrent:
            raise ConfigError(f"{self._where} has a state of {self.state_size} numbers; --core none is for none")
        shared = dict(self.module.named_parameters())
        others = set(self.module.state_dict()) - set(shared)
        if others:
            raise ConfigError(
                f"{self._where} keeps buffers ({', '.join(sorted(others))}), which processes do not share; make them "
                "parameters, or constants with persistent=False"
            )
        if any(parameter.dtype != torch.float32 for parameter in shared.values()):
            raise ConfigError(f"{self._where} has parameters that are not float32; make them float32")
        frozen = [name for name, parameter in shared.items() if not parameter.requires_grad]
        if frozen:
            raise ConfigError(
                f"{self._where} has parameters that are not learned ({', '.join(frozen)}); make them buffers with "
                "persistent=False"
            )
        try:
            with torch.enable_grad():
                stored = [torch.zeros(_L, _R, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for leaf in self._leaves]
                features, state = self(stored, torch.zeros(_R, self.state_size))
                shapes = tuple(features.shape), tuple(state.shape)
                used = torch.autograd.grad(features.sum(), list(shared.values()), allow_unused=True) if shared else ()
        except Exception as error:
            raise ConfigError(
                f"{self._where} fails on {_L} steps of {_R} rows; correct its forward: {error!r}"
            ) from error
        expected = (_L, _R, self.features), (_R, self.state_size)
        if shapes != expected:
            raise ConfigError(f"{self._where} returned features and state of shapes {shapes}; they must be {expected}")
        unused = [name for name, slope in zip(shared, used, strict=True) if slope is None]
        if unused:
            raise ConfigError(
                f"{self._where} has parameters without use for its features ({', '.join(unused)}); drop them"
            )

    def forward(self, obs: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """obs [L, R, …] per leaf as stored, vectors normalized; state [R, S] → features [L, R, F], state [R, S]."""
        steps, rows = obs[0].shape[:2]
        inputs = {
            leaf.field: network_input(leaf, stored.flatten(0, 1)).unflatten(0, (steps, rows))
            for leaf, stored in zip(self._leaves, obs, strict=True)
        }
        # A state of zeros is that of an episode's start, wherever the network is used.
        begins = (state == 0).all(-1).unsqueeze(0)
        if not self.state_size:
            begins = torch.zeros_like(begins)
        first = torch.cat([begins, begins.new_zeros(steps - 1, rows)])
        return self.module(inputs, first, state)
