"""Action distributions as pure functions of the policy head's output; no state, no autograd-heavy objects.

`params` is the head's output [..., P]. Noise is drawn ahead by the caller, so acting is a pure
function of (params, noise). Actions are rows [..., A] of float32, whatever the space, so that one
shared array holds them; `log_prob` is per action dimension [..., A] and the joint is its sum.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shmppo.config import ConfigError

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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
        """Most likely actions [..., A]."""

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-probability (density) per action dimension [..., A]."""

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy in nats, summed over dimensions [...]."""

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p ‖ q) in nats, summed over dimensions [...]; closed form."""

    def to_env(self, actions: np.ndarray) -> list:
        """Rows [n, A] as the n actions that the environments are given."""


class DiagonalGaussian:
    """Box actions: params = (mean, log standard deviation), each [..., A].

    The environment is given the action clipped to its bounds; the unclipped one is what is learned from.
    """

    def __init__(self, space: spaces.Box) -> None:
        self.action_size = int(np.prod(space.shape))
        self.noise_size = self.action_size
        self.num_params = 2 * self.action_size
        self.num_outputs = self.action_size
        self._shape = space.shape
        self._dtype = space.dtype
        self._low = space.low.astype(np.float32).reshape(-1)
        self._high = space.high.astype(np.float32).reshape(-1)

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
        clipped = np.clip(actions, self._low, self._high).astype(self._dtype, copy=False)
        return list(clipped.reshape(-1, *self._shape))


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


def distribution_for(space: spaces.Space, where: str) -> Distribution:
    """The distribution over an action space. Raises ConfigError, naming `where`, for one not supported."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagonalGaussian(space)
    if isinstance(space, spaces.Discrete):
        return Categorical(space)
    raise ConfigError(
        f"{where} has the action space {space}; supported are Box of floats and Discrete: wrap the environment"
    )
