"""Modules of the user, such as networks (--network).

An option names the factory that makes the module, as `module:factory`.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shmppo.config.checks import require
from shmppo.config.plugins import load_object
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.encoders import input_shape, network_input
from shmppo.spaces.observations import Leaf
from shmppo.utils.global_generators import drawn_since, generator_states
from shmppo.utils.program import is_plain
from shmppo.utils.user_code import describe_error, user_traceback

_PROBE_STEPS, _PROBE_SEQUENCES = 2, 8  # L and J of the forward pass that checks a new network


class UserModule(nn.Module, ABC):
    """A user's module, created by its factory and checked before training.

    Attributes:
        option: the field of the configuration that names the factory.
        module: the user's module.
        drawn: names of the global random generators from which it has drawn while gradients were computed.
        operations: those of its operations that have no deterministic form on the learner's device.
        copies: the copies of this object on the learner's device.
    """

    option: ClassVar[str]

    def __init__(self, config: TrainConfig, leaves: Sequence[Leaf], *sizes: int) -> None:
        """Call `factory(shapes, config, *sizes)` and check the result. shapes: of the network inputs, by leaf name.

        Raises:
            ConfigError: if the module cannot be created, or breaks a rule.
        """
        super().__init__()
        name = getattr(config, self.option)
        self._where = f"--{self.option} {name}"
        self._leaves, self._sizes = leaves, sizes
        factory = load_object(name, f"--{self.option}", nn.Module)
        shapes = {leaf.field: input_shape(leaf) for leaf in leaves}
        is_meta = torch.get_default_device().type == "meta"
        # The factory may compute with numbers, and only a module with numbers shows whether it is random.
        with torch.device("cpu"):
            try:
                module = factory(shapes, config, *sizes)
            except Exception as error:  # the user's code may raise anything
                raise self._raised("could not be made", error, "shapes", shapes) from error
            kind = type(module).__name__
            self._require(isinstance(module, nn.Module), f"must return an nn.Module, not an object of type {kind}")
            self.module = module
            self._check(config)
        if is_meta:
            self.module.to("meta")
        self._first_state = self._state()
        self.drawn: set[str] = set()
        self.operations: set[str] = set()
        self.copies: list[UserModule] = []

    def _state(self) -> dict[str, str]:
        """Return what a forward pass may have changed: numbers and texts that are attributes, and buffers, by name."""
        state = {
            f"{name}.{key}".removeprefix("."): repr(value)
            for name, module in self.module.named_modules()
            for key, value in vars(module).items()
            if is_plain(value) and key != "training" and not key.startswith("_")
        }
        buffers = {name: buffer for name, buffer in self.module.named_buffers() if buffer.device.type != "meta"}
        for name, buffer in buffers.items():
            dense = buffer if buffer.layout == torch.strided else buffer.to_dense()
            state[name] = str(zlib.crc32(dense.detach().cpu().to(torch.complex128).numpy().tobytes()))  # of any type
        return state

    @property
    def inexact_reason(self) -> str | None:
        """Why a run with the module is not reproducible, or None.

        The module may have changed an attribute, a buffer, or a global generator. Each process has its own copy, and
        checkpoints have none, so the weights then depend on both.
        """
        if self.operations:
            return f"{self._where} needs {', '.join(sorted(self.operations))}, which is not deterministic on a GPU"
        states = [one._state().items() for one in (self, *self.copies)]
        names = [name for state in states for name, value in state if self._first_state.get(name, value) != value]
        names += [f"the state of {name}" for name in sorted(self.drawn)]
        return f"{self._where} changes {names[0]}, of which each process has its own copy" if names else None

    @abstractmethod
    def _check(self, config: TrainConfig) -> None:
        """Check the module with `_check_forward`. Raises ConfigError."""

    def _require(self, condition: bool, otherwise: str) -> None:
        """Raise a ConfigError unless the condition is true. otherwise: what the module does wrong, and what to do."""
        require(condition, f"{self._where} {otherwise}")

    def _raised(self, what: str, error: Exception, argument: str, shapes: Mapping[str, tuple[int, ...]]) -> ConfigError:
        """Describe an exception of the user's code: its place, and the shapes in the argument that the code got."""
        given = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        text = f"{self._where} {what}: {describe_error(error)}; correct it ({argument} has {given})"
        return ConfigError(text, details=user_traceback(error))

    def _inputs(self, obs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the network inputs [R, *shape] by leaf name. obs: [R, …] per leaf, as stored; vectors normalized."""
        return {leaf.field: network_input(leaf, stored) for leaf, stored in zip(self._leaves, obs, strict=True)}

    def _check_forward(
        self,
        compute: Callable[[list[Tensor]], Sequence[Tensor]],
        size: tuple[int, ...],
        shapes: Sequence[tuple[int, ...]],
        outputs: str,
        inputs: Sequence[Tensor] = (),
    ) -> None:
        """Check the parameters, then the shapes and gradients of a forward pass, and that it is not random.

        Args:
            compute: the forward pass. Its argument is one tensor [*size, …] per leaf, as stored.
            shapes: the required shapes of its outputs.
            outputs: their names for messages. The first word names the first output, whose gradients are needed.
            inputs: further tensors to differentiate with respect to; the first output need not depend on them.

        Raises:
            ConfigError: if the module breaks a rule.
        """
        parameters = dict(self.module.named_parameters(remove_duplicate=False))  # layers may share a parameter
        self._check_parameters(parameters)
        tensors = [*parameters.values(), *inputs]
        gradients: Sequence[Tensor | None] = ()
        try:
            with torch.enable_grad():
                stored = [  # the input is not 0, so that dropout changes it; code 0 is one-hot, too
                    torch.full((*size, *leaf.shape), int(leaf.kind != "codes"), dtype=getattr(torch, leaf.dtype))
                    for leaf in self._leaves
                ]
                found, again = compute(stored), compute(stored)
                found_shapes = [tuple(output.shape) for output in found]
                if tensors:
                    gradients = torch.autograd.grad(found[0].sum(), tensors, allow_unused=True)
        except Exception as error:
            given = {leaf.field: (*size, *input_shape(leaf)) for leaf in self._leaves}
            raise self._raised("failed in forward", error, "obs", given) from error
        returned, needed = (", ".join(map(str, several)) for several in (found_shapes, shapes))
        self._require(returned == needed, f"returned {outputs} of shapes {returned}; they must be {needed}")
        first, same = outputs.split()[0], torch.equal(found[0], again[0])
        self._require(not found[0].isnan().any(), f"returned {first} with NaN, although the input has none")
        self._require(same, f"returned different {first} for the same input; remove dropout and randomness")
        unused = ", ".join(name for name, by in zip(parameters, gradients, strict=False) if by is None)
        self._require(not unused, f"has parameters that its {first} do not depend on ({unused}); remove them")

    def _check_parameters(self, parameters: dict[str, nn.Parameter]) -> None:
        """Check that the module holds nothing but trainable float32 parameters. Raises ConfigError."""
        buffers = ", ".join(sorted(set(self.module.state_dict()) - set(parameters)))
        self._require(not buffers, f"has buffers ({buffers}); make them parameters, or constants with persistent=False")
        exact = all(parameter.dtype == torch.float32 for parameter in parameters.values())
        self._require(exact, "has parameters that are not float32; make them float32")
        frozen = ", ".join(name for name, parameter in parameters.items() if not parameter.requires_grad)
        self._require(not frozen, f"has parameters that are not trained ({frozen}); make them non-persistent buffers")


def user_modules(model: nn.Module) -> list[UserModule]:
    """Return the modules of the user in a network."""
    return [module for module in model.modules() if isinstance(module, UserModule)]


@contextmanager
def drawn_by(modules: Sequence[UserModule]) -> Iterator[None]:
    """Record for modules of the user from which global generators the body draws."""
    before = generator_states() if modules else []
    yield
    for module in modules:
        module.drawn |= drawn_since(before)


class CustomNetwork(UserModule):
    """The user's module in place of `Trunk`: it replaces the encoders and the recurrent core.

    `factory(shapes, config)` returns an `nn.Module`. `shapes` maps the name of each observation leaf ("obs", or
    "obs/camera") to the shape of one network input, for those leaves that the network sees. The module must have:

    - `features`: F, the width of its output.
    - `state_size`: size of the recurrent state per environment; 0 if it has none.
    - `forward(obs, first, state) → (features, state)`. It processes whole sequences, with time as the first axis.

    Arguments and results of `forward`, for L steps of J sequences:

    - `obs`: maps each leaf name to float32 [L, J, *shape]. Vectors are normalized, codes are one-hot, and images are
      [channels, height, width] in 0 … 1.
    - `first`: bool [L, J], true where an episode starts. It can be true only at the first step of a sequence, and the
      state is zero there. An all-zero state is treated as an episode start. Without a recurrent state, `first` is
      always false.
    - `state`: [J, state_size], the state before the first step.
    - Returns features [L, J, F] and the state after the last step [J, state_size].

    Every parameter must be trainable, and the features must depend on it. Constants are buffers with persistent=False.
    The module must compute each sequence independently of the others. It must compute the same function in training and
    in acting, so dropout and batch statistics are not allowed. Sequences shorter than L are padded at their end.

    Attributes:
        features: F.
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
        state = torch.zeros(_PROBE_SEQUENCES, self.state_size)
        size = _PROBE_STEPS, _PROBE_SEQUENCES
        shapes = [(*size, self.features), tuple(state.shape)]
        self._check_forward(lambda stored: self(stored, state), size, shapes, "features and state")

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


class CustomEncoder(UserModule):
    """The user's module as the encoder of some or all parts of the observation (--encoder module:factory).

    `factory(shapes, config)` returns an `nn.Module`, as for `CustomNetwork`. The module must have:

    - `features`: F, the width of its output.
    - `forward(obs) → features` [R, F]. `obs` maps the name of each part to float32 [R, *shape], as for `CustomNetwork`.
      Each row is computed independently of the others.
    - `parts`, if it does not encode all parts: the names of those that it encodes. The built-in encoders encode the
      others.

    The rules about parameters, buffers, and randomness are those of `CustomNetwork`.

    Attributes:
        features: F.
        indices: positions of the leaves that it encodes among those of the trunk.
    """

    option = "encoder"

    def _check(self, config: TrainConfig) -> None:
        """Check the attributes, the parameters, and a forward pass. Raises ConfigError."""
        features: Any = getattr(self.module, "features", None)
        sized = isinstance(features, Integral) and int(features) >= 1
        self._require(sized, "must return an nn.Module with the attribute features, an integer of at least 1")
        self.features = int(features)
        names = [leaf.field for leaf in self._leaves]
        parts: Any = getattr(self.module, "parts", names)
        known = isinstance(parts, (list, tuple)) and bool(parts) and all(part in names for part in parts)
        self._require(known, f"has the attribute parts = {parts!r}; list some of {', '.join(names)}")
        self.indices = tuple(i for i, name in enumerate(names) if name in parts)
        self._leaves = [self._leaves[i] for i in self.indices]
        size = (_PROBE_SEQUENCES,)
        self._check_forward(lambda stored: [self._encode(stored)], size, [(*size, self.features)], "features")

    def _encode(self, stored: Sequence[Tensor]) -> Tensor:
        features: Tensor = self.module(self._inputs(stored))
        return features.float()  # float64 constants may have changed their type

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        """Map observations to features [R, F].

        Args:
            obs: [R, …] for each leaf of the trunk, as stored. Vectors must be normalized before.
        """
        return self._encode([obs[i] for i in self.indices])
