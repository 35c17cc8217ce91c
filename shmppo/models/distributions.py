"""Action distributions as pure functions of the policy head's output.

`params` [..., P] are the outputs of the policy head, followed by the parameters that do not depend on the observation.
The caller draws the noise in advance, so an action is a pure function of (params, noise). Actions are float32 [..., A]
for every action space, so one shared array holds them. `log_prob` returns one number per action dimension [..., A];
their sum is the log-probability of the action.
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
QUADRATURE_POINTS = 32  # of the Gauss-Hermite rule for the entropy of a squashed Gaussian

SUPPORTED = "Box of floats, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these"
MASKED = -1e8
"""Logit of a masked action. Its probability is 0 in float32, and 0 times its log-probability is 0."""


class Distribution(Protocol):
    """Interface of all action distributions. To support another action space, add a class with these members."""

    num_params: int
    """P, width of `params`."""
    num_outputs: int
    """Width of the policy head's output. The rest of `params` does not depend on the observation."""
    action_size: int
    """A, size of an action."""
    noise_size: int
    """Size of the noise for one action."""

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        """Draw the noise of one environment for `steps` steps, float32 [steps, noise_size]."""

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Return the actions [..., A] for the given noise [..., noise_size]."""

    def mode(self, params: Tensor) -> Tensor:
        """Return the most likely actions [..., A]. A squashed Gaussian returns the mean before squashing."""

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probability or log-density of each action dimension [..., A]."""

    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy in nats, summed over action dimensions [...]."""

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """Return KL(p ‖ q) in nats, summed over action dimensions [...]. It is computed in closed form."""

    def to_env(self, actions: np.ndarray) -> list[Any]:
        """Convert actions [n, A] to a list of n actions in the environment's own format."""

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        """Convert actions [n, A] like `to_env`, but to one tensor [n, …]. Parts of a joint action are concatenated."""


class DiagonalGaussian:
    """Distribution of Box actions. `params` are (mean, log standard deviation), each [..., A].

    The environment receives the action clipped to the bounds of the space. Learning uses the unclipped action.
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
        mean, log_std = params.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), noise)

    def mode(self, params: Tensor) -> Tensor:
        return params[..., : self.action_size]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return -0.5 * ((actions - mean) * torch.exp(-log_std)).square() - log_std - _HALF_LOG_2PI

    def entropy(self, params: Tensor) -> Tensor:
        return (params[..., self.action_size :] + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        # Σ_d log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²) / (2 σ_q²) − ½
        mean_p, log_p = p.chunk(2, -1)
        mean_q, log_q = q.chunk(2, -1)
        spread = (2 * log_p).exp() + (mean_p - mean_q).square()
        return (log_q - log_p + 0.5 * spread * torch.exp(-2 * log_q) - 0.5).sum(-1)

    def to_env(self, actions: np.ndarray) -> list[Any]:
        # np.clip returns a copy, so an environment may keep its action: later steps do not overwrite it.
        clipped = np.clip(actions.astype(self._dtype, copy=False), self._low, self._high)
        return list(clipped.reshape(-1, *self._shape))

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        low, high = torch.from_numpy(self._low), torch.from_numpy(self._high)
        return torch.minimum(torch.maximum(actions.to(low.dtype), low), high).reshape(-1, *self._shape)


class SquashedGaussian(DiagonalGaussian):
    """Distribution of Box actions a = middle + half range · tanh(u) with a Gaussian u.

    This holds for each dimension with two finite bounds. All other dimensions are as in `DiagonalGaussian`. `actions`
    are u, so no precision is lost where tanh saturates. `log_prob` and `entropy` are those of a. The KL divergence is
    that of the Gaussians: the map from u to a is one-to-one, so it leaves the KL divergence unchanged.
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
        return super().log_prob(params, actions) - torch.where(squashes, self._log_derivative(actions), 0.0)

    def entropy(self, params: Tensor) -> Tensor:
        # H(a) = H(u) + E log|da/du|. Gauss-Hermite quadrature gives the expectation; its error is below 0.002 for
        # standard deviations up to e.
        mean, log_std = params.chunk(2, -1)
        points = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self._points.to(params)  # [..., A, points]
        expected = self._log_derivative(points.transpose(-1, -2)).transpose(-1, -2) @ self._weights.to(params)
        return super().entropy(params) + torch.where(self._squashes.to(params.device), expected, 0.0).sum(-1)

    def _log_derivative(self, u: Tensor) -> Tensor:
        """Return log|da/du| = log(half range · (1 − tanh² u)) for u [..., A].

        The form used is log(half range) + 2 · (log 2 − u − softplus(−2u)), which stays accurate for large |u|.
        """
        return self._log_half.to(u.device) + 2 * (_LOG_2 - u - softplus(-2 * u))

    def to_env(self, actions: np.ndarray) -> list[Any]:
        # A vectorized tanh may round differently by position, and the position of an environment in this call depends
        # on the number of workers. Hence one call per number.
        squashed = np.array([math.tanh(u) for u in actions.reshape(-1).tolist()]).reshape(actions.shape)
        return super().to_env(np.where(self._bounded, self._middle + self._half * squashed, actions))

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        squashed = torch.from_numpy(self._middle) + torch.from_numpy(self._half) * actions.tanh()
        return super().to_env_tensor(torch.where(self._squashes, squashed, actions))


class Categorical:
    """Distribution of Discrete actions. `params` are logits [..., actions]; samples use the Gumbel-max trick."""

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
        # Σ_a p(a) (log p(a) − log q(a))
        log_p = p.log_softmax(-1)
        return (log_p.exp() * (log_p - q.log_softmax(-1))).sum(-1)

    def to_env(self, actions: np.ndarray) -> list[Any]:
        return [self._start + int(a) for a in actions[:, 0].tolist()]

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        return actions[:, 0].long() + self._start


class Bernoulli:
    """Distribution of MultiBinary actions. `params` are logits [..., A]; sigmoid(logit) is the probability of 1."""

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

    def to_env(self, actions: np.ndarray) -> list[Any]:
        return list(actions.astype(self._dtype).reshape(-1, *self._shape))

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        return actions.to(torch.int8).reshape(-1, *self._shape)


class Joint:
    """Product of independent distributions, for MultiDiscrete, Tuple, and Dict actions.

    Actions and noise of the parts are concatenated. `params` are the policy head's outputs of all parts, then the
    parameters of all parts that do not depend on the observation.
    """

    def __init__(self, parts: Sequence[Distribution], assemble: Callable[[Sequence[Any]], Any]) -> None:
        """Combine distributions.

        Args:
            parts: one distribution per part.
            assemble: builds the environment's action from one action of each part.
        """
        self._parts = list(parts)
        self._assemble = assemble
        self.action_size = sum(part.action_size for part in parts)
        self.noise_size = sum(part.noise_size for part in parts)
        self.num_outputs = sum(part.num_outputs for part in parts)
        self.num_params = sum(part.num_params for part in parts)
        self._action_slices = _slices([part.action_size for part in parts], 0)
        self._noise_slices = _slices([part.noise_size for part in parts], 0)
        self._output_slices = _slices([part.num_outputs for part in parts], 0)
        self._free_slices = _slices([part.num_params - part.num_outputs for part in parts], self.num_outputs)

    def _split(self, params: Tensor) -> list[Tensor]:
        """Return the params of each part."""
        return [
            torch.cat([params[..., outputs], params[..., free]], -1) if free.start < free.stop else params[..., outputs]
            for outputs, free in zip(self._output_slices, self._free_slices, strict=True)
        ]

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return np.concatenate([part.noise(generator, steps) for part in self._parts], axis=-1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        parts = zip(self._parts, self._split(params), self._noise_slices, strict=True)
        return torch.cat([part.sample(own, noise[..., where]) for part, own, where in parts], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.cat([part.mode(own) for part, own in zip(self._parts, self._split(params), strict=True)], -1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        parts = zip(self._parts, self._split(params), self._action_slices, strict=True)
        return torch.cat([part.log_prob(own, actions[..., where]) for part, own, where in parts], -1)

    def entropy(self, params: Tensor) -> Tensor:
        parts = zip(self._parts, self._split(params), strict=True)
        return torch.stack([part.entropy(own) for part, own in parts], -1).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        parts = zip(self._parts, self._split(p), self._split(q), strict=True)
        return torch.stack([part.kl(own_p, own_q) for part, own_p, own_q in parts], -1).sum(-1)

    def to_env(self, actions: np.ndarray) -> list[Any]:
        slices = zip(self._parts, self._action_slices, strict=True)
        parts = [part.to_env(actions[:, where]) for part, where in slices]
        return [self._assemble(one) for one in zip(*parts, strict=True)]

    def to_env_tensor(self, actions: Tensor) -> Tensor:
        slices = zip(self._parts, self._action_slices, strict=True)
        parts = [part.to_env_tensor(actions[:, where]) for part, where in slices]
        return torch.cat([one.reshape(actions.shape[0], -1) for one in parts], -1)


def _slices(sizes: Sequence[int], start: int) -> list[slice]:
    """Adjacent slices of the given sizes, the first one starting at `start`."""
    ends = np.cumsum([start, *sizes]).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


# Module functions instead of lambdas: distributions are pickled and sent to workers.


def _as_array(shape: tuple[int, ...], dtype: Any, numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, dtype).reshape(shape)


def _as_dict(names: Sequence[str], actions: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, actions, strict=True))


def distribution_for(space: spaces.Space[Any], where: str, *, squash: bool = False) -> Distribution:
    """Create the distribution for an action space.

    Args:
        space: the action space.
        where: name of the environment for error messages, such as "--env CartPole-v1".
        squash: squash bounded Box dimensions by tanh instead of clipping them.

    Raises:
        ConfigError: if the space or a part of it is not supported.
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
        parts = [distribution_for(s, f"{where}: part {i}", squash=squash) for i, s in enumerate(space)]
        return Joint(parts, tuple)
    if isinstance(space, spaces.Dict) and len(space):
        parts = [distribution_for(s, f"{where}: part {k!r}", squash=squash) for k, s in space.items()]
        return Joint(parts, functools.partial(_as_dict, tuple(space)))
    raise ConfigError(
        f"{where} has the action space {space}, which is not supported; supported are {SUPPORTED}: convert it with a "
        "wrapper"
    )


def mask_logits(params: Tensor, mask: Tensor) -> Tensor:
    """Replace the logits [..., P] by MASKED where the mask [..., P] is 0."""
    return torch.where(mask != 0, params, MASKED)
