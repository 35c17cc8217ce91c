"""Action distributions as pure functions of the policy head's output.

`params` [..., P] are the outputs of the policy head, followed by the parameters that do not depend on the observation.
`normalized` converts them once to what densities, entropies, and divergences are computed from, such as
log-probabilities instead of logits: `p` and `q` [..., P]. All derivatives are with respect to `params`.

The caller draws the noise in advance, so an action is a pure function of (params, noise). Actions are float32 [..., A]
for every action space, so one shared array holds them. `log_prob` returns one number per action dimension [..., A];
their sum is the log-probability of the action.

Everything is computed in NumPy with derivatives by hand. For arrays of this size a call of torch takes several times as
long as a call of NumPy, and autograd takes longer than the functions themselves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shmppo.config.checks import require
from shmppo.kernels.functions import exp, log, sigmoid, softplus, tanh

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)
QUADRATURE_POINTS = 32  # of the Gauss-Hermite rule for the entropy of a squashed Gaussian
MAX_SQUASHED = 0.9999
"""`SquashedGaussian.from_env` reads actions as at most this fraction of the half range: at a bound, u is infinite."""

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

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the actions [..., A] for the given noise [..., noise_size]."""

    def mode(self, params: np.ndarray) -> np.ndarray:
        """Return the most likely actions [..., A]. A squashed Gaussian returns the mean before squashing."""

    def named(self, params: np.ndarray) -> dict[Any, Any]:
        """Return what defines the distributions [n, …], by name; those of a joint action by its keys or indices."""

    def normalized(self, params: np.ndarray) -> np.ndarray:
        """Return the argument `p` of densities, entropies, and divergences, [..., P]. It may be `params` itself."""

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the log-probability or log-density of each action dimension [..., A]."""

    def entropy(self, p: np.ndarray) -> np.ndarray:
        """Return the entropy in nats, summed over action dimensions [...]."""

    def kl(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Return KL(p ‖ q) in nats, summed over action dimensions [...]. It is computed in closed form."""

    def log_prob_grad(self, p: np.ndarray, actions: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        """Return the derivative of Σ upstream · log_prob with respect to `params`, [..., P].

        upstream: [..., A], or [..., 1] if it is the same for all action dimensions.
        """

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        """Return the derivative of the entropy with respect to `params`, [..., P]."""

    def kl_grad(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Return the derivative of KL(p ‖ q) with respect to the `params` of q, [..., P]."""

    def to_env(self, actions: np.ndarray) -> list[Any]:
        """Convert actions [n, A] to a list of n actions in the environment's own format."""

    def from_env(self, actions: Any) -> np.ndarray:
        """Convert n actions in the environment's own format, stacked along a first axis, to actions float32 [n, A].

        The inverse of `to_env`.
        """

    def best_action(self, params: Tensor) -> Tensor:
        """Compute `to_env(mode(params))` with torch, for an exported policy.

        params: [n, P]. Returns one tensor [n, …]; parts of a joint action are concatenated.
        """

    def c_action(self, outputs: str) -> list[tuple[str, str]]:
        """Return `to_env(mode(params))` as C: the type and the expression of each number.

        outputs: expression of the address of the policy head's output. Raises ConfigError if there is no such code.
        """


class StateStd(NamedTuple):
    """Standard deviation that depends on the state: log σ = x + offset, limited to low … high, for an output x."""

    offset: float
    low: float = -5.0
    high: float = 2.0


def c_type(dtype: np.dtype[Any]) -> str:
    """Return the C type of Box actions. Raises ConfigError if there is none."""
    kind = {"float32": "float", "float64": "double"}.get(dtype.name, "")
    require(bool(kind), f"--format c has no actions of type {dtype}; use --format onnx")
    return kind


class DiagonalGaussian:
    """Distribution of Box actions. `params` are (mean, log standard deviation), each [..., A].

    With `state_std`, both are outputs of the policy head, and x of `StateStd` replaces the second one. The environment
    receives the action clipped to the bounds of the space. Learning uses the unclipped action.
    """

    def __init__(self, space: spaces.Box, state_std: StateStd | None = None) -> None:
        self.action_size = int(np.prod(space.shape))
        self.noise_size = self.action_size
        self.num_params = 2 * self.action_size
        self.num_outputs = self.action_size if state_std is None else self.num_params
        self._state_std = state_std
        self._shape = space.shape
        self._dtype = space.dtype
        self._low = space.low.reshape(-1)
        self._high = space.high.reshape(-1)

    def normalized(self, params: np.ndarray) -> np.ndarray:
        if self._state_std is None:
            return params
        offset, low, high = self._state_std
        mean, x = self._halves(params)
        return np.concatenate([mean, np.clip(x + np.float32(offset), low, high)], -1)

    def _halves(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return views of what belongs to the mean and to the log standard deviation."""
        return array[..., : self.action_size], array[..., self.action_size :]

    def _limit(self, gradient: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Set the derivative with respect to x of `StateStd` to 0 where log σ is at a limit."""
        if self._state_std is not None:
            _, low, high = self._state_std
            log_std = self._halves(p)[1]
            self._halves(gradient)[1][...] *= (log_std > low) & (log_std < high)
        return gradient

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return generator.standard_normal((steps, self.noise_size), dtype=np.float32)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, log_std = self._halves(self.normalized(params))
        return mean + exp(log_std) * noise

    def mode(self, params: np.ndarray) -> np.ndarray:
        return params[..., : self.action_size]

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        mean, log_std = self._halves(p)
        z = (actions - mean) * exp(-log_std)
        return -0.5 * (z * z) - log_std - _HALF_LOG_2PI

    def entropy(self, p: np.ndarray) -> np.ndarray:
        _, log_std = self._halves(p)
        return np.add.reduce(log_std + (0.5 + _HALF_LOG_2PI), -1)

    def kl(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        # Σ_d log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²) / (2 σ_q²) − ½
        (mean_p, log_p), (mean_q, log_q) = self._halves(p), self._halves(q)
        spread = exp(2 * log_p) + np.square(mean_p - mean_q)
        return np.add.reduce(log_q - log_p + 0.5 * spread * exp(-2 * log_q) - 0.5, -1)

    def log_prob_grad(self, p: np.ndarray, actions: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        # ∂/∂μ = (a − μ) / σ², ∂/∂log σ = (a − μ)² / σ² − 1
        mean, log_std = self._halves(p)
        inverse = exp(-log_std)
        z = (actions - mean) * inverse
        gradient = np.empty_like(p)
        by_mean, by_log_std = self._halves(gradient)
        np.multiply(z * inverse, upstream, out=by_mean)
        np.multiply(z * z - 1, upstream, out=by_log_std)
        return self._limit(gradient, p)

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        gradient = np.zeros_like(p)
        gradient[..., self.action_size :] = 1
        return self._limit(gradient, p)

    def kl_grad(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        # ∂/∂μ_q = (μ_q − μ_p) / σ_q², ∂/∂log σ_q = 1 − (σ_p² + (μ_p − μ_q)²) / σ_q²
        (mean_p, log_p), (mean_q, log_q) = self._halves(p), self._halves(q)
        difference, precision = mean_q - mean_p, exp(-2 * log_q)
        spread = exp(2 * log_p) + np.square(difference)
        return self._limit(np.concatenate([difference * precision, 1 - spread * precision], -1), q)

    def named(self, params: np.ndarray) -> dict[Any, Any]:
        mean, log_std = self._halves(self.normalized(params))
        return {"mean": mean.reshape(-1, *self._shape), "std": exp(log_std).reshape(-1, *self._shape)}

    def to_env(self, actions: np.ndarray) -> list[Any]:
        # `clip` returns a copy, so an environment may keep its action: later steps do not overwrite it.
        clipped = actions.astype(self._dtype, copy=False).clip(self._low, self._high)
        return list(clipped.reshape(-1, *self._shape))

    def from_env(self, actions: Any) -> np.ndarray:
        return np.reshape(actions, (-1, self.action_size)).astype(np.float32)

    def best_action(self, params: Tensor) -> Tensor:
        return self._clip(params[..., : self.action_size])

    def c_action(self, outputs: str) -> list[tuple[str, str]]:
        kind = c_type(self._dtype)
        bounds = zip(self._low.tolist(), self._high.tolist(), strict=True)
        limits = [
            [repr(x) if math.isfinite(x) else f"{math.copysign(1, x):.0f} * HUGE_VAL" for x in pair] for pair in bounds
        ]
        means = [f"({kind}){self._c_mean(outputs, k)}" for k in range(self.action_size)]
        return [(kind, f"limit((double){x}, {low}, {high})") for x, (low, high) in zip(means, limits, strict=True)]

    def _c_mean(self, outputs: str, k: int) -> str:
        """Return number k of the action before it is clipped."""
        return f"({outputs})[{k}]"

    def _clip(self, actions: Tensor) -> Tensor:
        low, high = torch.from_numpy(self._low), torch.from_numpy(self._high)
        return torch.minimum(torch.maximum(actions.to(low.dtype), low), high).reshape(-1, *self._shape)


class SquashedGaussian(DiagonalGaussian):
    """Distribution of Box actions a = middle + half range · tanh(u) with a Gaussian u.

    This holds for each dimension with two finite bounds. All other dimensions are as in `DiagonalGaussian`. `actions`
    are u, so no precision is lost where tanh saturates. `log_prob` and `entropy` are those of a. The KL divergence is
    that of the Gaussians: the map from u to a is one-to-one, so it leaves the KL divergence unchanged.
    """

    def __init__(self, space: spaces.Box, state_std: StateStd | None = None) -> None:
        super().__init__(space, state_std)
        self._bounded = np.isfinite(self._low) & np.isfinite(self._high) & (self._low < self._high)
        low = np.where(self._bounded, self._low, -1.0).astype(np.float64)
        high = np.where(self._bounded, self._high, 1.0).astype(np.float64)
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._log_half = np.log(self._half).astype(np.float32)
        # The eigenvalues behind these depend on the processor, but not their float32 values.
        points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)
        self._points = points.astype(np.float32)
        self._weights = (weights / weights.sum()).astype(np.float32)

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return super().log_prob(p, actions) - np.where(self._bounded, self._log_derivative(actions), 0)

    def entropy(self, p: np.ndarray) -> np.ndarray:
        # H(a) = H(u) + E log|da/du|. Gauss-Hermite quadrature gives the expectation; its error is below 0.002 for
        # standard deviations up to e.
        points = np.swapaxes(self._quadrature(p), -1, -2)  # [..., points, A]
        expected = np.add.reduce(self._log_derivative(points) * self._weights[:, np.newaxis], -2)
        return super().entropy(p) + np.add.reduce(np.where(self._bounded, expected, 0), -1)

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        # ∂ log|da/du| / ∂u = −2 tanh(u), at u = μ + σ · point
        by_point = -2 * tanh(self._quadrature(p)) * self._weights  # [..., A, points]
        gradient = super().entropy_grad(p)
        by_mean, by_log_std = self._halves(gradient)
        std = exp(self._halves(p)[1])
        by_mean += np.where(self._bounded, np.add.reduce(by_point, -1), 0)
        by_log_std += np.where(self._bounded, np.add.reduce(by_point * self._points, -1) * std, 0)
        return self._limit(gradient, p)

    def _quadrature(self, p: np.ndarray) -> np.ndarray:
        """Return the values of u at the points of the quadrature, [..., A, points]."""
        mean, log_std = self._halves(p)
        return mean[..., np.newaxis] + exp(log_std)[..., np.newaxis] * self._points

    def _log_derivative(self, u: np.ndarray) -> np.ndarray:
        """Return log|da/du| = log(half range · (1 − tanh² u)) for u [..., A].

        The form used is log(half range) + 2 · (log 2 − u − softplus(−2u)), which stays accurate for large |u|.
        """
        return self._log_half + 2 * (_LOG_2 - u - softplus(-2 * u))

    def to_env(self, actions: np.ndarray) -> list[Any]:
        return super().to_env(np.where(self._bounded, self._middle + self._half * tanh(actions), actions))

    def _c_mean(self, outputs: str, k: int) -> str:
        if not self._bounded[k]:
            return super()._c_mean(outputs, k)
        return f"({float(self._middle[k])} + {float(self._half[k])} * (double)tanh_of(({outputs})[{k}]))"

    def from_env(self, actions: Any) -> np.ndarray:
        # artanh a = ½ log((1 + a) / (1 − a))
        given = super().from_env(actions)
        a = np.clip((given - self._middle) / self._half, -MAX_SQUASHED, MAX_SQUASHED).astype(np.float32)
        return np.where(self._bounded, 0.5 * log((1 + a) / (1 - a)), given)

    def best_action(self, params: Tensor) -> Tensor:
        u = params[..., : self.action_size]
        squashed = torch.from_numpy(self._middle) + torch.from_numpy(self._half) * u.tanh()
        return self._clip(torch.where(torch.from_numpy(self._bounded), squashed, u))


class Categorical:
    """Distribution of Discrete actions. `params` are logits [..., actions]; samples use the Gumbel-max trick.

    Normalized, they are log-probabilities.
    """

    action_size = 1

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_params = self.num_outputs = self.noise_size = int(space.n)
        self._start = int(space.start)

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return generator.gumbel(size=(steps, self.noise_size)).astype(np.float32)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self.mode(params + noise)

    def mode(self, params: np.ndarray) -> np.ndarray:
        return params.argmax(-1, keepdims=True).astype(np.float32)

    def normalized(self, params: np.ndarray) -> np.ndarray:
        return _log_softmax(params)

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.take_along_axis(p, actions.astype(np.int64), -1)

    def entropy(self, p: np.ndarray) -> np.ndarray:
        return -np.add.reduce(exp(p) * p, -1)

    def kl(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        # Σ_a p(a) (log p(a) − log q(a))
        return np.add.reduce(exp(p) * (p - q), -1)

    def log_prob_grad(self, p: np.ndarray, actions: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        # ∂/∂logit_b = 1[a = b] − p(b)
        return ((actions == np.arange(self.num_params, dtype=np.float32)) - exp(p)) * upstream

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        # −p(b) (log p(b) + H)
        probabilities = exp(p)
        return -probabilities * (p - np.add.reduce(probabilities * p, -1, keepdims=True))

    def kl_grad(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return exp(q) - exp(p)

    def named(self, params: np.ndarray) -> dict[Any, Any]:
        return {"probabilities": exp(self.normalized(params))}

    def to_env(self, actions: np.ndarray) -> list[Any]:
        return [self._start + int(a) for a in actions[:, 0].tolist()]

    def from_env(self, actions: Any) -> np.ndarray:
        return np.reshape(actions, (-1, self.action_size)).astype(np.float32) - self._start

    def best_action(self, params: Tensor) -> Tensor:
        return params.argmax(-1) + self._start

    def c_action(self, outputs: str) -> list[tuple[str, str]]:
        fits = self._start > -(2**31) and self._start + self.num_params <= 2**31
        require(fits, f"--format c has no actions from {self._start} on; use --format onnx")
        return [("int32_t", f"(largest({outputs}, {self.num_params}) + {self._start})")]


class Bernoulli:
    """Distribution of MultiBinary actions. `params` are logits [..., A]; sigmoid(logit) is the probability of 1."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        self.action_size = int(np.prod(space.shape))
        self.num_params = self.num_outputs = self.noise_size = self.action_size
        self._shape = space.shape
        self._dtype = space.dtype

    def noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        return generator.logistic(size=(steps, self.noise_size)).astype(np.float32)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self.mode(params + noise)

    def mode(self, params: np.ndarray) -> np.ndarray:
        return (params > 0).astype(np.float32)

    def normalized(self, params: np.ndarray) -> np.ndarray:
        return params

    def log_prob(self, p: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return -softplus(p * (1 - 2 * actions))

    def entropy(self, p: np.ndarray) -> np.ndarray:
        return np.add.reduce(softplus(p) - p * sigmoid(p), -1)

    def kl(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        ones = sigmoid(p) * (softplus(-q) - softplus(-p))
        zeros = sigmoid(-p) * (softplus(q) - softplus(p))
        return np.add.reduce(ones + zeros, -1)

    def log_prob_grad(self, p: np.ndarray, actions: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        return (actions - sigmoid(p)) * upstream

    def entropy_grad(self, p: np.ndarray) -> np.ndarray:
        ones = sigmoid(p)
        return -p * ones * (1 - ones)

    def kl_grad(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return sigmoid(q) - sigmoid(p)

    def named(self, params: np.ndarray) -> dict[Any, Any]:
        return {"probabilities": sigmoid(params).reshape(-1, *self._shape)}

    def to_env(self, actions: np.ndarray) -> list[Any]:
        return list(actions.astype(self._dtype).reshape(-1, *self._shape))

    def from_env(self, actions: Any) -> np.ndarray:
        return np.reshape(actions, (-1, self.action_size)).astype(np.float32)

    def best_action(self, params: Tensor) -> Tensor:
        return (params > 0).to(torch.int8).reshape(-1, *self._shape)

    def c_action(self, outputs: str) -> list[tuple[str, str]]:
        return [("int32_t", f"(({outputs})[{k}] > 0.0f)") for k in range(self.action_size)]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis."""
    shifted = logits - np.maximum.reduce(logits, -1, keepdims=True)
    shifted -= log(np.add.reduce(exp(shifted), -1, keepdims=True))
    return shifted


def mask_logits(params: Tensor, mask: Tensor) -> Tensor:
    """Replace the logits [..., P] by MASKED where the mask [..., P] is 0."""
    return torch.where(mask != 0, params, MASKED)
