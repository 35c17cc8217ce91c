"""The beta distribution of bounded Box actions.

Everything is computed in float64, because log-densities, entropies, and divergences are small differences of large
numbers for large α and β. Results have the dtype of `params`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shmppo.errors import ConfigError
from shmppo.kernels.functions import sigmoid, softplus
from shmppo.spaces.distributions import c_type
from shmppo.spaces.special_functions import digamma, log, log_gamma, trigamma

ATTEMPTS = 5  # for one gamma variate; each is accepted with a probability of at least 0.95
MARGIN = 1e-6  # samples lie in MARGIN … 1 − MARGIN
_TINY = 1e-30  # makes the mode 0.5 if both concentrations are 1 in float32
_MINIMUM = np.array([[1.0], [1.0], [2.0]])  # of α, β, and α + β


class Beta:
    """Distribution of bounded Box actions low + (high − low)·x with x ~ Beta(α, β) (Chou et al. 2017).

    `params` are a and b, each [..., A], with α = 1 + softplus(a) and β = 1 + softplus(b), so the density has one
    maximum. `actions` are x. `log_prob` and `entropy` are those of the environment's action.

    A sample of x is g/(g + h) with two gamma variates, drawn by the rejection sampling of Marsaglia and Tsang (2000).
    The noise has 5 attempts for each variate. If all of them are rejected, which has a probability below 4e-7, the
    variate is the value of the first attempt.
    """

    def __init__(self, space: spaces.Box, where: str) -> None:
        """Create the distribution for a space.

        Args:
            space: the action space.
            where: name of the environment for error messages.

        Raises:
            ConfigError: if a dimension does not have finite bounds with low < high.
        """
        self.action_size = int(np.prod(space.shape))
        self.num_params = self.num_outputs = 2 * self.action_size
        self.noise_size = 2 * ATTEMPTS * self.num_params
        self._shape, self._dtype = space.shape, space.dtype
        self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
        self._range = self._high.astype(np.float64) - self._low
        for i in np.flatnonzero(~((self._range > 0) & (self._range < np.inf))):
            raise ConfigError(
                f"{where} has Box actions with the bounds {self._low[i]} … {self._high[i]} in dimension {i}, but "
                "--distribution beta needs finite bounds with low < high; use --distribution gaussian"
            )
        self._log_range = log(self._range)

    def _concentrations(self, params: np.ndarray) -> np.ndarray:
        """Return α, β, and α + β, as [..., 3, A]."""
        z = 1 + softplus(params).astype(np.float64).reshape(*params.shape[:-1], 2, self.action_size)
        return np.concatenate([z, z[..., :1, :] + z[..., 1:, :]], -2)

    def _to_params(self, gradient: np.ndarray, params: np.ndarray) -> np.ndarray:
        """Convert ∂/∂α, ∂/∂β, and −∂/∂(α + β), [..., 3, A], to the derivative with respect to `params`."""
        by_concentrations = gradient[..., :2, :] - gradient[..., 2:, :]
        return (by_concentrations.reshape(*params.shape) * sigmoid(params)).astype(params.dtype, copy=False)

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        size = (steps, self.noise_size // 2)
        normal = generator.standard_normal(size, dtype=np.float32)
        return np.concatenate([normal, generator.standard_exponential(size, dtype=np.float32)], -1)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        # With d = α − ⅓ and a normal n, d·v with v = (1 + n/√(9d))³ > 0 is accepted if a uniform number is below
        # exp(½n² + d − d·v + d·log v), or a standard exponential one above minus this exponent.
        d = softplus(params).astype(np.float64)[..., np.newaxis, :] + 2 / 3
        attempts = noise.astype(np.float64).reshape(*noise.shape[:-1], 2 * ATTEMPTS, self.num_params)
        normal, exponential = np.split(attempts, 2, -2)
        root = np.maximum(1 + normal / np.sqrt(9 * d), 1e-10)  # rejected where it is 1e-10
        v = root * root * root
        accepted = exponential > d * (v - 1 - log(v)) - 0.5 * normal * normal
        g, h = np.split((d * np.take_along_axis(v, accepted.argmax(-2, keepdims=True), -2))[..., 0, :], 2, -1)
        return np.asarray(np.clip(g / (g + h), MARGIN, 1 - MARGIN), params.dtype)

    def mode(self, params: np.ndarray) -> np.ndarray:
        a, b = np.split(softplus(params) + _TINY, 2, -1)
        return a / (a + b)

    def normalized(self, params: np.ndarray) -> np.ndarray:
        return params

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        # (α − 1) log x + (β − 1) log(1 − x) − log B(α, β) − log(high − low)
        z = self._concentrations(p)
        by_x = np.add.reduce((z[..., :2, :] - 1) * _logarithms(actions), -2)
        return (by_x - _combine(log_gamma(z)) - self._log_range).astype(p.dtype, copy=False)

    def entropy(self, p: np.ndarray) -> np.ndarray:
        # log B(α, β) − (α − 1) ψ(α) − (β − 1) ψ(β) + (α + β − 2) ψ(α + β) + log(high − low)
        z = self._concentrations(p)
        entropy = _combine(log_gamma(z) - (z - _MINIMUM) * digamma(z))
        return np.add.reduce(entropy + self._log_range, -1).astype(p.dtype, copy=False)

    def kl(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        # log B(q) − log B(p) + (α_p − α_q) ψ(α_p) + (β_p − β_q) ψ(β_p) − (α_p + β_p − α_q − β_q) ψ(α_p + β_p)
        z_p, z_q = self._concentrations(p), self._concentrations(q)
        divergence = _combine(log_gamma(z_q) - log_gamma(z_p) + (z_p - z_q) * digamma(z_p))
        return np.add.reduce(divergence, -1).astype(q.dtype, copy=False)

    def log_prob_grad(self, p: np.ndarray, actions: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        # ∂/∂α = log x − ψ(α) + ψ(α + β), ∂/∂β = log(1 − x) − ψ(β) + ψ(α + β)
        gradient = -digamma(self._concentrations(p))
        gradient[..., :2, :] += _logarithms(actions)
        return self._to_params(gradient * upstream[..., np.newaxis, :], p)

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        # ∂/∂α = −(α − 1) ψ'(α) + (α + β − 2) ψ'(α + β)
        z = self._concentrations(p)
        return self._to_params((_MINIMUM - z) * trigamma(z), p)

    def kl_grad(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        # ∂/∂α_q = ψ(α_q) − ψ(α_p) − ψ(α_q + β_q) + ψ(α_p + β_p)
        return self._to_params(digamma(self._concentrations(q)) - digamma(self._concentrations(p)), q)

    def named(self, params: np.ndarray) -> dict[Any, Any]:
        alpha, beta = np.split(1 + softplus(params), 2, -1)
        return {"alpha": alpha.reshape(-1, *self._shape), "beta": beta.reshape(-1, *self._shape)}

    def to_env(self, actions: np.ndarray) -> list[Any]:
        scaled = np.clip(self._low + self._range * actions, self._low, self._high)
        return list(scaled.astype(self._dtype).reshape(-1, *self._shape))

    def from_env(self, actions: Any) -> np.ndarray:
        x = (np.reshape(actions, (-1, self.action_size)) - self._low) / self._range
        return np.clip(x, MARGIN, 1 - MARGIN).astype(np.float32)

    def best_action(self, params: Tensor) -> Tensor:
        a, b = (torch.nn.functional.softplus(params) + _TINY).chunk(2, -1)
        low, high, size = (torch.from_numpy(bound) for bound in (self._low, self._high, self._range))
        scaled = torch.minimum(torch.maximum(low + size * (a / (a + b)), low), high)
        return scaled.to(low.dtype).reshape(-1, *self._shape)

    def c_action(self, outputs: str) -> list[tuple[str, str]]:
        kind, y = c_type(self._dtype), self.action_size
        bounds = zip(self._low.tolist(), self._range.tolist(), self._high.tolist(), strict=True)
        modes = (f"(double)mode_of(({outputs})[{k}], ({outputs})[{y + k}])" for k in range(y))
        parts = zip(modes, bounds, strict=True)
        return [(kind, f"limit({low} + {size} * {mode}, {low}, {high})") for mode, (low, size, high) in parts]


def _logarithms(actions: np.ndarray) -> np.ndarray:
    """Return log x and log(1 − x), [..., 2, A]."""
    x = actions.astype(np.float64)
    return log(np.stack([x, 1 - x], -2))


def _combine(terms: np.ndarray) -> np.ndarray:
    """Add the terms of α and β, and subtract that of α + β, [..., 3, A], as in log B(α, β). Returns [..., A]."""
    return terms[..., 0, :] + terms[..., 1, :] - terms[..., 2, :]
