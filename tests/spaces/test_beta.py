"""The beta distribution: special functions, samples, densities of the environment's actions, and large parameters."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import torch_distribution
from public_helpers import python

from shmppo.errors import ConfigError
from shmppo.spaces import special_functions
from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.beta import ATTEMPTS, MARGIN, Beta

UNIT = spaces.Box(0, 1, (1,))
EXACT = {
    "log": torch.log,
    "log_gamma": torch.lgamma,
    "digamma": torch.digamma,
    "trigamma": lambda z: torch.special.zeta(torch.tensor(2.0, dtype=torch.float64), z),
}


def raw(*concentrations: float) -> np.ndarray:
    """The parameters of the given α and β: the inverse of 1 + softplus."""
    excess = np.array(concentrations) - 1
    return excess + np.log(-np.expm1(-excess))


@pytest.mark.parametrize("name", EXACT)
def test_special_functions_against_torch(name: str) -> None:
    generator = np.random.default_rng(0)
    z = 1 + np.concatenate([10 ** generator.uniform(-17, 9, 10_000), generator.uniform(0, 30, 10_000), [0.0]])
    z = np.concatenate([z, 10 ** generator.uniform(-30, 0, 1000)]) if name == "log" else z
    found, expected = getattr(special_functions, name)(z), EXACT[name](torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-13, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e5])
def test_errors_do_not_grow_with_the_concentrations(scale: float) -> None:
    """The terms of the entropy and of the KL are about `scale`, but their errors are not."""
    generator = np.random.default_rng(0)
    distribution = Beta(spaces.Box(0, 1, (2,)), "a test")
    p = (scale * generator.uniform(0.5, 2, (50, 4))).astype(np.float32)
    q = (p * generator.uniform(0.9, 1.1, (50, 4))).astype(np.float32)
    actions = distribution.sample(p, distribution.noise(generator, 50))
    expected, other = (torch_distribution(distribution, torch.from_numpy(x).double()) for x in (p, q))
    log_prob = expected.log_prob(torch.from_numpy(actions).double())
    np.testing.assert_allclose(distribution.log_prob(p, actions).sum(-1), log_prob, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(distribution.entropy(p), expected.entropy(), rtol=1e-6, atol=1e-6)
    divergence = torch.distributions.kl_divergence(expected, other)
    np.testing.assert_allclose(distribution.kl(p, q), divergence, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "concentrations", [(1 + 1e-7, 1 + 1e-7), (1.05, 4), (1.7, 1.7), (1.4, 1.1), (40, 3), (2e3, 900)]
)
def test_samples_have_the_cumulative_distribution(concentrations: tuple[float, float]) -> None:
    """The largest distance of the two distribution functions is below its 99.9th percentile (Kolmogorov-Smirnov)."""
    count, distribution = 200_000, Beta(UNIT, "a test")
    params = raw(*concentrations)
    x = distribution.sample(np.tile(params, (count, 1)), distribution.noise(np.random.default_rng(1), count))[:, 0]
    edges = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 400_001))  # denser at the ends
    middles = 0.5 * (edges[1:] + edges[:-1])
    mass = np.exp(distribution.log_prob(np.tile(params, (len(middles), 1)), middles[:, np.newaxis])[:, 0])
    cumulative = np.concatenate([[0], np.cumsum(mass * np.diff(edges))])
    assert cumulative[-1] == pytest.approx(1, abs=1e-6)
    expected = np.interp(np.sort(x), edges, cumulative)
    distance = np.abs(expected - (np.arange(count) + 0.5) / count).max()
    assert distance < 1.95 / np.sqrt(count)
    alpha, beta = concentrations
    mean, variance = alpha / (alpha + beta), alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1))
    assert x.mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / count))
    assert x.var() == pytest.approx(variance, rel=0.02)


def test_a_sample_uses_the_first_attempt_that_is_accepted() -> None:
    distribution = Beta(UNIT, "a test")
    params = raw(2.0, 5.0)
    d = np.array([2, 5]) - 1 / 3
    normal, exponential = np.zeros((ATTEMPTS, 2)), np.ones((ATTEMPTS, 2))
    normal[0, 0], normal[1, 0] = -10, 0.5  # no positive proposal, then one that is accepted
    normal[0, 1], normal[2, 1], exponential[:2, 1] = 3, -0.5, 0
    normal[1, 1] = 3
    v = (1 + np.array([0.5, -0.5]) / np.sqrt(9 * d)) ** 3
    noise = np.concatenate([normal.ravel(), exponential.ravel()])
    g, h = d * v
    np.testing.assert_allclose(distribution.sample(params, noise), [g / (g + h)], rtol=1e-12)
    normal[:] = -10
    noise = np.concatenate([normal.ravel(), exponential.ravel()])
    assert np.isfinite(distribution.sample(params, noise)).all()  # none is accepted


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_samples_and_densities_of_extreme_parameters_stay_in_the_interval(size: float) -> None:
    distribution = Beta(UNIT, "a test")
    params = np.array([[a, b] for a in (-size, 0, size) for b in (-size, 0, size)], np.float32)
    x = distribution.sample(params, distribution.noise(np.random.default_rng(0), 9))
    assert x.dtype == np.float32
    assert ((x > 0) & (x < 1) & (x >= np.float32(MARGIN))).all()
    assert np.isfinite(distribution.log_prob(params, x)).all()
    assert np.isfinite(distribution.log_prob_grad(params, x, np.ones((9, 1), np.float32))).all()
    np.testing.assert_allclose(distribution.mode(params)[[0, 4, 8, 2, 6], 0], [0.5, 0.5, 0.5, 0, 1], atol=1e-6)


def test_actions_and_densities_are_those_of_the_environment() -> None:
    box = spaces.Box(np.float32([-2, 1]), np.float32([3, 1.5]))
    distribution, unit = Beta(box, "a test"), Beta(spaces.Box(0, 1, (2,)), "a test")
    params, x = np.array([[0.3, -1, 2, 0.1]]), np.array([[0.2, 0.5]])
    np.testing.assert_allclose(distribution.to_env(x), [[-1, 1.25]])
    np.testing.assert_allclose(distribution.log_prob(params, x), unit.log_prob(params, x) - np.log([5, 0.5]))
    np.testing.assert_allclose(distribution.entropy(params), unit.entropy(params) + np.log(5) + np.log(0.5))
    alpha, beta = 1 + np.log1p(np.exp(params[:, :2])), 1 + np.log1p(np.exp(params[:, 2:]))
    np.testing.assert_allclose(distribution.mode(params), (alpha - 1) / (alpha + beta - 2), rtol=1e-12)


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (0, np.inf), (-np.inf, 3), (2, 2)])
def test_a_dimension_without_two_finite_bounds_is_refused(bounds: tuple[float, float]) -> None:
    low, high = np.float32([-1, bounds[0]]), np.float32([1, bounds[1]])
    space = spaces.Dict({"arm": spaces.Box(low, high), "gear": spaces.Discrete(3)})
    message = (
        rf"^--env X: part 'arm' has Box actions with the bounds {low[1]} … {high[1]} in dimension 1, but "
        r"--distribution beta needs finite bounds with low < high; use --distribution gaussian$"
    )
    with pytest.raises(ConfigError, match=message):
        distribution_for(space, "--env X", beta=True)
    distribution_for(spaces.Dict({"gear": spaces.Discrete(3)}), "--env X", beta=True)


def test_actions_at_a_bound_have_finite_densities_and_gradients() -> None:
    distribution = Beta(spaces.Box(-2, 3, (2,)), "a test")
    params, ones = raw(2.0, 3.0, 4.0, 5.0).astype(np.float32)[None], np.ones((1, 2), np.float32)
    actions = distribution.from_env(np.array([[-2.0, 3.0]], np.float32))
    np.testing.assert_array_equal(actions, np.float32([[MARGIN, 1 - MARGIN]]))
    assert np.isfinite(distribution.log_prob(params, actions)).all()
    assert np.isfinite(distribution.log_prob_grad(params, actions, ones)).all()


DIGEST = """
import hashlib, numpy, gymnasium
from shmppo.spaces import special_functions
from shmppo.spaces.beta import Beta
draw, distribution = numpy.random.default_rng(0), Beta(gymnasium.spaces.Box(-3, 0.7, (3,)), "a test")
p, q = draw.normal(0, 3, (2, 1000, 6)).astype(numpy.float32)
x = distribution.sample(p, draw.normal(0, 1, (1000, distribution.noise_size)).astype(numpy.float32))
numbers = [
    x, distribution.mode(p), distribution.log_prob(p, x), distribution.entropy(p), distribution.kl(p, q),
    distribution.log_prob_grad(p, x, x), distribution.entropy_grad(p), distribution.kl_grad(p, q),
]
z = draw.uniform(1, 50, 10000)
numbers += [getattr(special_functions, name)(z) for name in ("log", "log_gamma", "digamma", "trigamma")]
print(*[hashlib.sha256(array.tobytes()).hexdigest() for array in numbers])
"""


@pytest.mark.slow(reason="5 s")
def test_vector_instructions_of_numpy_change_no_bit() -> None:
    found = set()
    for disabled in ("", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"):
        environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": disabled, "PYTHONPATH": os.pathsep.join(sys.path)}
        found.add(python("-c", DIGEST, env=environment).stdout)
    assert len(found) == 1
    assert len(found.pop().split()) == 12
