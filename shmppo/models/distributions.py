"""Action distributions as pure functions of the policy head's output; no state, no autograd-heavy objects.

`params` is the head's output [..., P]. Noise is drawn ahead by the caller, so acting is a pure
function of (params, noise). Actions are rows [..., A] of float32, whatever the space, so that one
shared array holds them; `log_prob` is per action dimension [..., A] and the joint is its sum.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from shmppo.errors import ConfigError

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)
QUADRATURE_POINTS = 32

SUPPORTED = "Box of floats, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of those"


class Distribution(Protocol):
    """What the trainer asks of an action space. Supporting another space means adding one of these."""

    num_params: int
    """P, width of `params`."""
    num_outputs: int
    """Width of the network's linear output; the rest of `params` is state-independent."""
    action_size: int
    """A, numbers per action."""
    noise_size: int
    """Numbers of noise per action."""

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        """Noise of one environment for `steps` steps, float32 [steps, noise_size]."""

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., A]."""

    def mode(self, params: Tensor) -> Tensor:
        """The deterministic policy's actions [..., A]: the most likely ones, of Gaussians before any squashing."""

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-probability (density) per action dimension [..., A]."""

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy in nats, summed over dimensions [...]."""

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p ‖ q) in nats, summed over dimensions [...]; closed form."""

    def to_env(self, actions: np.ndarray) -> list:
        """Rows [n, A] as the n actions that the environments are given."""

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        """Rows [n, A] as what `to_env` returns in one tensor [n, …]; several parts flat and side by side."""


class DiagonalGaussian:
    """Box actions: params = (mean, log standard deviation), each [..., A].

    The environment is given the action clipped to its bounds, where it has some; the unclipped one is what is learned
    from.
    """

    def __init__(self, space: spaces.Box) -> None:
        self.action_size = int(np.prod(space.shape))
        self.noise_size = self.action_size
        self.num_params = 2 * self.action_size
        self.num_outputs = self.action_size
        self._shape = space.shape
        self._dtype = space.dtype
        self._low = space.low.reshape(-1)
        self._high = space.high.reshape(-1)

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return generator.standard_normal((steps, self.noise_size), dtype=np.float32)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = params.split(self.action_size, -1)
        return torch.addcmul(mean, log_std.exp(), noise)

    def mode(self, params: Tensor) -> Tensor:
        return params[..., : self.action_size]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.split(self.action_size, -1)
        return -0.5 * ((actions - mean) * torch.exp(-log_std)).square() - log_std - _HALF_LOG_2PI

    def entropy(self, params: Tensor) -> Tensor:
        return (params[..., self.action_size :] + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        # Σ_d log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²) / (2 σ_q²) − ½
        mean_p, log_p = p.split(self.action_size, -1)
        mean_q, log_q = q.split(self.action_size, -1)
        spread = (2 * log_p).exp() + (mean_p - mean_q).square()
        return (log_q - log_p + 0.5 * spread * torch.exp(-2 * log_q) - 0.5).sum(-1)

    def to_env(self, actions: np.ndarray) -> list:
        # np.clip returns new memory, so an environment that keeps its action keeps it unharmed.
        clipped = np.clip(actions.astype(self._dtype, copy=False), self._low, self._high)
        return list(clipped.reshape(-1, *self._shape))

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        low, high = torch.from_numpy(self._low), torch.from_numpy(self._high)
        return torch.minimum(torch.maximum(actions.to(low.dtype), low), high).reshape(-1, *self._shape)


class SquashedGaussian(DiagonalGaussian):
    """Box actions a = middle + half range · tanh(u), u Gaussian, in each dimension with two finite bounds.

    Dimensions without are as in `DiagonalGaussian`. `actions` are u, so that nothing is lost where tanh saturates;
    densities are those of a.
    """

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        self._bounded = np.isfinite(self._low) & np.isfinite(self._high) & (self._low < self._high)
        low = np.where(self._bounded, self._low, -1.0).astype(np.float64)
        high = np.where(self._bounded, self._high, 1.0).astype(np.float64)
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._squashes = torch.from_numpy(self._bounded)
        self._log_half = torch.from_numpy(np.log(self._half).astype(np.float32))
        points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)
        self._points = torch.from_numpy(points.astype(np.float32))
        self._weights = torch.from_numpy((weights / weights.sum()).astype(np.float32))

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        squashes = self._squashes.to(actions.device)
        return super().log_prob(params, actions) - torch.where(squashes, self._log_slope(actions), 0.0)

    def entropy(self, params: Tensor) -> Tensor:
        # H(a) = H(u) + E log|da/du|, the mean by Gauss-Hermite quadrature: within 0.002 for σ up to e.
        mean, log_std = params.split(self.action_size, -1)
        points = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self._points.to(params)  # [..., A, points]
        slopes = self._log_slope(points.transpose(-1, -2)).transpose(-1, -2) @ self._weights.to(params)
        return super().entropy(params) + torch.where(self._squashes.to(params.device), slopes, 0.0).sum(-1)

    def _log_slope(self, u: Tensor) -> Tensor:
        """log|da/du| of u [..., A]: log(half range · (1 − tanh² u)), in a form that does not cancel for large |u|."""
        return self._log_half.to(u.device) + 2 * (_LOG_2 - u - softplus(-2 * u))

    # The KL divergence is that of the Gaussians: what maps u to a, one to one, does not change it.

    def to_env(self, actions: np.ndarray) -> list:
        # One number after the other: a vectorized tanh may round by position, and the number of rows depends on W.
        squashed = np.array([math.tanh(u) for u in actions.reshape(-1).tolist()]).reshape(actions.shape)
        return super().to_env(np.where(self._bounded, self._middle + self._half * squashed, actions))

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        squashed = torch.from_numpy(self._middle) + torch.from_numpy(self._half) * actions.tanh()
        return super().to_env_tensor(torch.where(self._squashes, squashed, actions))


class Categorical:
    """Discrete actions: params = logits [..., number of actions]; sampled by the Gumbel-max trick."""

    action_size = 1

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_params = self.num_outputs = self.noise_size = int(space.n)
        self._start = int(space.start)

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return generator.gumbel(size=(steps, self.noise_size)).astype(np.float32)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return (params + noise).argmax(-1, keepdim=True).to(torch.float32)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1, keepdim=True).to(torch.float32)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, actions.long())

    def entropy(self, params: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        # Σ p (log p − log q)
        log_p = p.log_softmax(-1)
        return (log_p.exp() * (log_p - q.log_softmax(-1))).sum(-1)

    def to_env(self, actions: np.ndarray) -> list:
        return [self._start + int(a) for a in actions[:, 0].tolist()]

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        return actions[:, 0].long() + self._start


class Bernoulli:
    """MultiBinary actions: params = logits [..., A], each dimension 1 with probability sigmoid(logit)."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        self.action_size = int(np.prod(space.shape))
        self.num_params = self.num_outputs = self.noise_size = self.action_size
        self._shape = space.shape
        self._dtype = space.dtype

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return generator.logistic(size=(steps, self.noise_size)).astype(np.float32)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return (params + noise > 0).to(torch.float32)

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).to(torch.float32)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return logsigmoid(params * (2 * actions - 1))

    def entropy(self, params: Tensor) -> Tensor:
        return (softplus(params) - params * params.sigmoid()).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        ones = p.sigmoid() * (logsigmoid(p) - logsigmoid(q))
        zeros = (-p).sigmoid() * (logsigmoid(-p) - logsigmoid(-q))
        return (ones + zeros).sum(-1)

    def to_env(self, actions: np.ndarray) -> list:
        return list(actions.astype(self._dtype).reshape(-1, *self._shape))

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        return actions.to(torch.int8).reshape(-1, *self._shape)


class Joint:
    """Independent parts side by side: the actions of MultiDiscrete, Tuple and Dict.

    `params` are the outputs of all parts, then the state-independent parameters of all parts.
    """

    def __init__(self, parts: Sequence[Distribution], assemble: Callable[[Sequence[Any]], Any]) -> None:
        """assemble: makes an action out of one action of each part."""
        self._parts = list(parts)
        self._assemble = assemble
        self.action_size = sum(part.action_size for part in parts)
        self.noise_size = sum(part.noise_size for part in parts)
        self.num_outputs = sum(part.num_outputs for part in parts)
        self.num_params = sum(part.num_params for part in parts)
        self._actions = _slices([part.action_size for part in parts], 0)
        self._noise = _slices([part.noise_size for part in parts], 0)
        self._outputs = _slices([part.num_outputs for part in parts], 0)
        self._free = _slices([part.num_params - part.num_outputs for part in parts], self.num_outputs)

    def _params(self, params: Tensor) -> list[Tensor]:
        """The params of each part."""
        return [
            torch.cat([params[..., own], params[..., free]], -1) if free.start < free.stop else params[..., own]
            for own, free in zip(self._outputs, self._free, strict=True)
        ]

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return np.concatenate([part.noise(generator, steps) for part in self._parts], axis=-1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        parts = zip(self._parts, self._params(params), self._noise, strict=True)
        return torch.cat([part.sample(own, noise[..., drawn]) for part, own, drawn in parts], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.cat([part.mode(own) for part, own in zip(self._parts, self._params(params), strict=True)], -1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        parts = zip(self._parts, self._params(params), self._actions, strict=True)
        return torch.cat([part.log_prob(own, actions[..., taken]) for part, own, taken in parts], -1)

    def entropy(self, params: Tensor) -> Tensor:
        parts = zip(self._parts, self._params(params), strict=True)
        return torch.stack([part.entropy(own) for part, own in parts], -1).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        parts = zip(self._parts, self._params(p), self._params(q), strict=True)
        return torch.stack([part.kl(own_p, own_q) for part, own_p, own_q in parts], -1).sum(-1)

    def to_env(self, actions: np.ndarray) -> list:
        parts = [part.to_env(actions[:, taken]) for part, taken in zip(self._parts, self._actions, strict=True)]
        return [self._assemble(one) for one in zip(*parts, strict=True)]

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        taken = [part.to_env_tensor(actions[:, own]) for part, own in zip(self._parts, self._actions, strict=True)]
        return torch.cat([one.reshape(actions.shape[0], -1) for one in taken], -1)


def _slices(sizes: Sequence[int], begin: int) -> list[slice]:
    """Slices of the given sizes, one after the other."""
    ends = np.cumsum([begin, *sizes]).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def _as_array(shape: tuple[int, ...], dtype: Any, numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, dtype).reshape(shape)


def _as_dict(names: Sequence[str], actions: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, actions, strict=True))


def distribution_for(space: spaces.Space, where: str, *, squash: bool = False) -> Distribution:
    """The distribution over an action space.

    Args:
        where: what the space is of, for the message.
        squash: squash bounded dimensions of Box by tanh instead of clipping them.

    Raises:
        ConfigError: for a space, or part of one, that is not supported.
    """
    parts: list[Distribution]
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        return SquashedGaussian(space) if squash else DiagonalGaussian(space)
    if isinstance(space, spaces.Discrete):
        return Categorical(space)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(space)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        parts = [Categorical(spaces.Discrete(n, start=start)) for n, start in zip(sizes, starts, strict=True)]
        return Joint(parts, functools.partial(_as_array, space.shape, space.dtype))
    if isinstance(space, spaces.Tuple) and len(space):
        parts = [distribution_for(s, f"{where}: part {i} of it", squash=squash) for i, s in enumerate(space)]
        return Joint(parts, tuple)
    if isinstance(space, spaces.Dict) and len(space):
        parts = [distribution_for(s, f"{where}: part {k!r} of it", squash=squash) for k, s in space.items()]
        return Joint(parts, functools.partial(_as_dict, tuple(space)))
    raise ConfigError(f"{where} has the action space {space}; supported are {SUPPORTED}: wrap the environment")


def mask_logits(params: Tensor, mask: Tensor) -> Tensor:
    """Logits [..., P] with those at the zeros of a mask [..., P] replaced by MASKED."""
    return torch.where(mask != 0, params, MASKED)


MASKED = -1e8
"""Logit of an action that is not allowed: its probability is 0 in float32, and 0 times its logarithm is 0."""
