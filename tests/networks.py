"""Networks as a user would name them, and some that break the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Leaky(nn.Module):
    """Features that leak into a state: h ← h/2 + tanh(W x); its own reset at `first`, which changes nothing."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], units: int = 6) -> None:
        super().__init__()
        self.features = self.state_size = units
        self.inputs = nn.ModuleList(nn.Linear(torch.Size(shape).numel(), units) for shape in shapes.values())

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x = sum(layer(leaf.flatten(2)) for layer, leaf in zip(self.inputs, obs.values(), strict=True))
        outputs = []
        for step, begins in zip(torch.tanh(x), first, strict=True):
            state = 0.5 * torch.where(begins.unsqueeze(-1), 0.0, state) + step
            outputs.append(state)
        return torch.stack(outputs), state


def leaky(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Leaky(shapes)


class Delayed(Leaky):
    """Its features are the states before each step, so W matters only from the second step of a sequence on."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        before = []
        for t in range(len(first)):
            before.append(state)
            _, state = super().forward({name: leaf[t : t + 1] for name, leaf in obs.items()}, first[t : t + 1], state)
        return torch.stack(before), state


def delayed(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Delayed(shapes)


class ManyThreads(Leaky):
    """Lets torch use two threads from then on."""

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        torch.set_num_threads(2)
        return super().forward(*inputs)


def many_threads(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return ManyThreads(shapes)


class Plain(nn.Module):
    """No state."""

    features, state_size = 4, 0

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(shapes["obs"][0], 4)

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(obs["obs"]).relu(), state


class Scaled(Plain):
    """Computes with numbers while it is made, and returns float64."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.scale = torch.full((4,), torch.linspace(0, 2, 5)[3].item(), dtype=torch.float64)

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        features, _ = super().forward(obs, first, state)
        return features * self.scale, state


class Lost(Plain):
    """Reads a part that the observation lacks."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(obs["image"]), state


class Dropping(Plain):
    """Has dropout."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.dropout(self.layer(obs["obs"])), state


class DroppingPixels(nn.Module):
    """Has dropout before its first layer."""

    features, state_size = 4, 0

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(torch.Size(shapes["obs"]).numel(), 4)

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(nn.functional.dropout(obs["obs"].flatten(2))), state


class Branching(Plain):
    """What it computes depends on the data, so no single graph describes it."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layer(obs["obs"])
        return x.relu() if x.sum() > 0 else x.tanh(), state


class Wide(Plain):
    features = 5


class Modular(Plain):
    """Its layers have the name of the width."""

    features: Any = None

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.features = nn.Sequential(self.layer)


class Stateless(Plain):
    state_size: Any = None


class Detached(Plain):
    """Its features have no gradient."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return super().forward(obs, first, state)


class Normed(Plain):
    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.norm = nn.BatchNorm1d(4)


class Idle(Plain):
    """Has a parameter that it never uses."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.idle = nn.Parameter(torch.zeros(3))


def frozen(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    plain = Plain(shapes, config)
    plain.layer.bias.requires_grad_(False)
    return plain


def double(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Plain(shapes, config).double()


def nothing(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return nn.Linear(1, 1)


class Mixing(Plain):
    """Each row gets the mean over all rows, so the rows of an inference batch influence each other."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layer(obs["obs"]).relu()
        return x - x.mean(1, keepdim=True), state


class Predict(nn.Module):
    """An auxiliary loss: the features and the action predict the observation and the return of their step."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any, features: int, actions: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features + actions, 1 + sum(torch.Size(shape).numel() for shape in shapes.values()))

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        targets = torch.cat([returns.unsqueeze(1), *(leaf.flatten(1) for leaf in obs.values())], 1)
        return (self.layer(torch.cat([features, actions], 1)) - targets).square().mean(1)


class Projected(Predict):
    """Has random constants."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any, features: int, actions: int) -> None:
        super().__init__(shapes, config, features, actions)
        self.register_buffer("constants", torch.randn(features), persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        return super().forward(features * self.constants, obs, actions, returns)


class Probe(Predict):
    """Its gradient does not flow into the network."""

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        return super().forward(features.detach(), obs, actions, returns)


class Halved(Predict):
    """Returns the loss of every second step."""

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        return super().forward(features, obs, actions, returns)[::2]


class Forgetful(Predict):
    """Does not use its parameters."""

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        return features.square().mean(1)


class Noisy(Predict):
    """Has dropout."""

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(features), obs, actions, returns)


class Undefined(Predict):
    """Divides 0 by 0."""

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Tensor:
        return super().forward(features, obs, actions, returns) * 0 / 0


class Total(Predict):
    """Returns a number that is no tensor."""

    def forward(self, features: Tensor, obs: Mapping[str, Tensor], actions: Tensor, returns: Tensor) -> Any:
        return super().forward(features, obs, actions, returns).sum().item()


def no_module(shapes: Mapping[str, tuple[int, ...]], config: Any, features: int, actions: int) -> None:
    return None


def camera(shapes: Mapping[str, tuple[int, ...]], config: Any, features: int, actions: int) -> nn.Module:
    return nn.Linear(features, *shapes["obs/camera"])


class Counts(Plain):
    """Counts its calls."""

    calls = 0

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self.calls = self.calls + 1
        return super().forward(obs, first, state)


class DrawsWhileLearning(Plain):
    """From the tenth forward pass for a gradient on, it adds noise."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self._calls = 0

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        features, state = super().forward(obs, first, state)
        self._calls += torch.is_grad_enabled()
        return features + (1e-4 * torch.rand(()) if torch.is_grad_enabled() and self._calls > 9 else 0.0), state


class Puts(Plain):
    """Uses an operation that torch has in no deterministic form. It changes nothing."""

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        torch.zeros(2).put_(torch.tensor([0, 1]), torch.zeros(2))
        return super().forward(obs, first, state)


class RunningMean(Plain):
    """From the fifth call on, it has a mean of its inputs."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.register_buffer("mean", torch.zeros(()), persistent=False)
        self._calls = 0

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self._calls += 1
        if self._calls > 4:
            self.mean.mul_(0.9).add_(0.1 * obs["obs"].mean())
        return super().forward(obs, first, state)


class Draws(Plain):
    """Draws from a global generator after some calls."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self._calls = 0

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self._calls += 1
        features, state = super().forward(obs, first, state)
        return features + (1e-4 * np.random.rand() if self._calls > 60 else 0.0), state  # noqa: NPY002


class Lists(Plain):
    """Counts its calls in a list."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.calls = [0]

    def forward(self, obs: Mapping[str, Tensor], first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self.calls[0] += 1
        return super().forward(obs, first, state)


class Bfloat16Buffer(Plain):
    """Has a constant of a type that NumPy lacks."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.register_buffer("constant", torch.ones(3, dtype=torch.bfloat16), persistent=False)


class SparseBuffer(Plain):
    """Has a sparse constant."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: Any) -> None:
        super().__init__(shapes, config)
        self.register_buffer("constant", torch.eye(3).to_sparse(), persistent=False)


class Look(nn.Module):
    """An encoder: a convolution of an image, and a layer of it and all other parts.

    parts: names of those that it encodes. None: all.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], parts: Sequence[str] | None = None) -> None:
        super().__init__()
        if parts is not None:
            self.parts = parts
        self.names = [name for name in shapes if parts is None or name in parts]
        self.convolutions = nn.ModuleDict()
        width, self.features = 0, 5
        for name in self.names:
            if len(shapes[name]) == 3:
                self.convolutions[name] = nn.Sequential(nn.Conv2d(shapes[name][0], 3, 2), nn.ReLU(), nn.Flatten())
            width += self._one(name, torch.zeros(1, *shapes[name])).shape[1]
        self.layer = nn.Linear(width, self.features)

    def _one(self, name: str, x: Tensor) -> Tensor:
        return self.convolutions[name](x) if name in self.convolutions else x.flatten(1)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return torch.tanh(self.layer(torch.cat([self._one(name, obs[name]) for name in self.names], 1)))


def look(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Look(shapes)


def look_at_image(shapes: Mapping[str, tuple[int, ...]], config: Any) -> nn.Module:
    return Look(shapes, [name for name, shape in shapes.items() if len(shape) == 3])
