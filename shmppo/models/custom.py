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

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from shmppo.config.plugins import load_object
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.encoders import input_shape, network_input
from shmppo.spaces.observations import Leaf
from shmppo.utils.user_code import describe_error, user_traceback

_PROBE_STEPS, _PROBE_SEQUENCES = 2, 8  # L and J of the forward pass that checks a new network


class CustomNetwork(nn.Module):
    """The user's module in place of `Trunk`: it maps observations to features."""

    def __init__(self, config: TrainConfig, leaves: Sequence[Leaf]) -> None:
        """Create the user's module and check it.

        Args:
            leaves: of the observation that the module maps to features.

        Raises:
            ConfigError: if the module cannot be created or does not follow the rules of this file.
        """
        super().__init__()
        self._where = f"--network {config.network}"
        self._leaves = leaves
        self._names = [leaf.field for leaf in self._leaves]
        factory = load_object(cast(str, config.network), "--network", nn.Module)
        shapes = {leaf.field: input_shape(leaf) for leaf in self._leaves}
        try:
            module = factory(shapes, config)
        except Exception as error:  # the user's code may raise anything
            raise self._raised("could not be made", error, "shapes", shapes) from error
        if not isinstance(module, nn.Module) or not {"features", "state_size"} <= set(dir(module)):
            raise ConfigError(f"{self._where} must return an nn.Module with the attributes features and state_size")
        self.module = module
        self.features = int(cast(int, module.features))
        self.state_size = int(cast(int, module.state_size))
        if torch.get_default_device().type == "meta":  # only a module with numbers shows whether it is random
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                CustomNetwork(config, leaves)
        else:
            self._check(config)

    def _raised(self, what: str, error: Exception, argument: str, shapes: Mapping[str, tuple[int, ...]]) -> ConfigError:
        """Describe an exception of the user's code: its place, and the shapes in the argument that the code got."""
        given = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        text = f"{self._where} {what}: {describe_error(error)}; correct it ({argument} has {given})"
        return ConfigError(text, details=user_traceback(error))

    def _check(self, config: TrainConfig) -> None:
        """Check the parameters, then the shapes and gradients of one forward pass. Raises ConfigError."""
        if self.state_size and not config.recurrent:
            raise ConfigError(
                f"{self._where} has a recurrent state of size {self.state_size}, but --core none is set; remove "
                "--core none, or set state_size to 0"
            )
        parameters = dict(self.module.named_parameters())
        self._check_parameters(parameters)
        try:
            with torch.enable_grad():
                size = _PROBE_STEPS, _PROBE_SEQUENCES
                stored = [  # vectors are not 0, so that dropout changes them
                    torch.full((*size, *leaf.shape), int(leaf.kind == "vector"), dtype=getattr(torch, leaf.dtype))
                    for leaf in self._leaves
                ]
                features, state = self(stored, torch.zeros(_PROBE_SEQUENCES, self.state_size))
                again, _ = self(stored, torch.zeros(_PROBE_SEQUENCES, self.state_size))
                shapes = tuple(features.shape), tuple(state.shape)
                tensors = list(parameters.values())
                gradients = torch.autograd.grad(features.sum(), tensors, allow_unused=True) if tensors else ()
        except Exception as error:
            inputs = {leaf.field: (_PROBE_STEPS, _PROBE_SEQUENCES, *input_shape(leaf)) for leaf in self._leaves}
            raise self._raised("failed in forward", error, "obs", inputs) from error
        expected = (_PROBE_STEPS, _PROBE_SEQUENCES, self.features), (_PROBE_SEQUENCES, self.state_size)
        if shapes != expected:
            raise ConfigError(f"{self._where} returned features and state of shapes {shapes}; they must be {expected}")
        if not torch.equal(features, again):
            raise ConfigError(
                f"{self._where} returned other features for the same input; remove dropout and randomness from forward"
            )
        unused = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None]
        if unused:
            raise ConfigError(
                f"{self._where} has parameters that its features do not depend on ({', '.join(unused)}); remove them"
            )

    def _check_parameters(self, parameters: dict[str, nn.Parameter]) -> None:
        """Check that the module holds nothing but trainable float32 parameters. Raises ConfigError."""
        buffers = set(self.module.state_dict()) - set(parameters)
        if buffers:
            raise ConfigError(
                f"{self._where} has buffers ({', '.join(sorted(buffers))}), which processes do not share; make them "
                "parameters, or constants with persistent=False"
            )
        if any(parameter.dtype != torch.float32 for parameter in parameters.values()):
            raise ConfigError(f"{self._where} has parameters that are not float32; make them float32")
        frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
        if frozen:
            raise ConfigError(
                f"{self._where} has parameters that are not trained ({', '.join(frozen)}); make them buffers with "
                "persistent=False"
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
        inputs = {
            name: torch.unflatten(network_input(leaf, stored.flatten(0, 1)), 0, (steps, sequences))
            for name, leaf, stored in zip(self._names, self._leaves, obs, strict=True)
        }
        # An all-zero state marks an episode start. The rule is the same in acting and in learning.
        starts = (state == 0).all(-1).unsqueeze(0)
        if not self.state_size:
            starts = torch.zeros_like(starts)
        first = torch.cat([starts, starts.new_zeros(steps - 1, sequences)])
        return cast(tuple[Tensor, Tensor], self.module(inputs, first, state))
