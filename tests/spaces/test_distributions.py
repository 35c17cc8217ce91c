"""Action distributions: densities, entropies, divergences, and the actions that environments get."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from helpers import torch_distribution

from shmppo.errors import ConfigError
from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.distributions import Categorical, DiagonalGaussian, Distribution, SquashedGaussian, StateStd
from shmppo.utils.device_arrays import DeviceArray

BOUNDS = np.array([-2.0, -np.inf, 1.0], np.float32), np.array([3.0, np.inf, 1.5], np.float32)
PART_BOUNDED = spaces.Box(*BOUNDS)
NESTED = spaces.Dict(
    {
        "arm": spaces.Tuple([PART_BOUNDED, spaces.MultiBinary((2, 2))]),
        "gear": spaces.Discrete(3, start=-1),
        "buttons": spaces.MultiDiscrete(np.array([[2, 5]]), start=np.array([[4, 0]])),
    }
)
SPACES: dict[str, spaces.Space] = {
    "box": PART_BOUNDED,
    "box64": spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi-binary": spaces.MultiBinary(4),
    "nested": NESTED,
    "unit-box": spaces.Box(0, 1, (3,)),
    "bounded": spaces.Tuple([spaces.Box(np.float32([-2, 1]), np.float32([3, 1.5])), spaces.Discrete(3)]),
}
CASES = [(name, False) for name in list(SPACES)[:6]] + [(name, True) for name in ("box", "box64", "nested")]
CASES += [(f"{name}, state", squash) for name in ("box", "nested") for squash in (False, True)]
CASES += [(f"{name}, beta", False) for name in ("box64", "unit-box", "bounded")]
STATE_STD = StateStd(-0.3, -0.9, 0.2)  # narrow, so that random numbers are at the limits


def make(name: str, squash: bool = False) -> Distribution:
    """Create a distribution. name: of the space, and "state" or "beta" after a comma."""
    space, _, kind = name.partition(", ")
    state_std = STATE_STD if kind == "state" else None
    return distribution_for(SPACES[space], "a test", squash=squash, state_std=state_std, beta=kind == "beta")


def drawn(distribution: Distribution, count: int, seed: int = 0, dtype: type = np.float64) -> list[np.ndarray]:
    """Two sets of policy parameters, and actions sampled from the first."""
    generator = np.random.default_rng(seed)
    p, q = (0.7 * generator.standard_normal((count, distribution.num_params)).astype(dtype) for _ in range(2))
    return [p, q, distribution.sample(p, distribution.noise(generator, count)).astype(dtype)]


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_actions_of_the_environment_are_converted_back(name: str, squash: bool) -> None:
    distribution, space = make(name, squash), SPACES[name.partition(", ")[0]]
    given = distribution.to_env(drawn(distribution, 9, dtype=np.float32)[2])
    stacked = concatenate(space, given, create_empty_array(space, 9))
    actions = distribution.from_env(stacked)
    assert (actions.dtype, actions.shape) == (np.float32, (9, distribution.action_size))
    again = concatenate(space, distribution.to_env(actions), create_empty_array(space, 9))
    for one, other in zip(leaves_of(again), leaves_of(stacked), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-4 if squash else 1e-6 * ("beta" in name))  # tanh saturates


def leaves_of(actions: Any) -> list[np.ndarray]:
    """The arrays of stacked actions."""
    if isinstance(actions, np.ndarray):
        return [actions]
    return [leaf for part in (actions.values() if isinstance(actions, dict) else actions) for leaf in leaves_of(part)]


def test_a_squashed_action_at_a_bound_stays_finite() -> None:
    distribution = distribution_for(PART_BOUNDED, "a test", squash=True)
    actions = distribution.from_env(np.array([[3.0, 3.0, 1.0], [-2.0, -8.0, 1.25]]))
    bound = np.arctanh(0.9999)
    np.testing.assert_allclose(actions, [[bound, 3, -bound], [-bound, -8, 0]], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["box", "box64", "discrete", "multi-binary", "unit-box, beta"])
def test_closed_forms_agree_with_torch_distributions(name: str) -> None:
    distribution = make(name)
    p, q, actions = drawn(distribution, 7)
    expected, other = (
        torch_distribution(distribution, torch.from_numpy(p)),
        torch_distribution(distribution, torch.from_numpy(q)),
    )
    plain = torch.from_numpy(actions[:, 0] if isinstance(distribution, Categorical) else actions)
    np.testing.assert_allclose(distribution.log_prob(p, actions).sum(-1), expected.log_prob(plain), rtol=1e-11)
    np.testing.assert_allclose(distribution.entropy(p), expected.entropy(), rtol=1e-11)
    divergence = torch.distributions.kl_divergence(expected, other)
    np.testing.assert_allclose(distribution.kl(p, q), divergence, rtol=1e-10)


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_derivatives_agree_with_finite_differences(name: str, squash: bool) -> None:
    distribution = make(name, squash)
    p, q, actions = drawn(distribution, 5)
    upstream = np.random.default_rng(1).standard_normal((5, distribution.action_size))
    functions = {
        "log_prob": (
            lambda x: (upstream * distribution.log_prob(x, actions)).sum(-1),
            distribution.log_prob_grad(q, actions, upstream),
        ),
        "log_prob, one factor": (
            lambda x: upstream[:, 0] * distribution.log_prob(x, actions).sum(-1),
            distribution.log_prob_grad(q, actions, upstream[:, :1]),
        ),
        "entropy": (distribution.entropy, distribution.entropy_grad(q)),
        "kl": (lambda x: distribution.kl(p, x), distribution.kl_grad(p, q)),
    }
    for label, (function, gradient) in functions.items():
        expected = np.empty_like(q)
        for i in range(distribution.num_params):
            step = np.zeros(distribution.num_params)
            step[i] = 1e-5
            expected[:, i] = (function(q + step) - function(q - step)) / 2e-5
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=2e-7, err_msg=label)


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_float32_stays_float32_and_extreme_parameters_stay_finite(name: str, squash: bool) -> None:
    distribution = make(name, squash)
    p, q, actions = drawn(distribution, 3, dtype=np.float32)
    if distribution.num_params == distribution.num_outputs:  # logits
        p, q = 1000 * p, -1000 * q
    ones = np.ones((3, 1), np.float32)
    numbers = [
        distribution.log_prob(p, actions), distribution.entropy(p), distribution.kl(p, q), distribution.mode(p),
        distribution.log_prob_grad(p, actions, ones), distribution.entropy_grad(p), distribution.kl_grad(p, q),
    ]  # fmt: skip
    assert {array.dtype for array in numbers} == {np.dtype(np.float32)}
    assert all(np.isfinite(array).all() for array in numbers)


def test_the_numbers_of_a_step_do_not_depend_on_the_other_steps() -> None:
    """With eight parts or more, np.sum adds those of a single step in another order."""
    distribution = distribution_for(spaces.MultiDiscrete([3] * 9), "a test")
    p, q, _ = drawn(distribution, 100, dtype=np.float32)
    alone = [
        (distribution.entropy(p[i : i + 1])[0], distribution.kl(p[i : i + 1], q[i : i + 1])[0]) for i in range(100)
    ]
    assert alone == list(zip(distribution.entropy(p), distribution.kl(p, q), strict=True))


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_shapes_and_that_the_divergence_from_itself_is_zero(name: str, squash: bool) -> None:
    distribution = make(name, squash)
    p, _, actions = drawn(distribution, 7)
    assert actions.shape == distribution.log_prob(p, actions).shape == (7, distribution.action_size)
    assert distribution.mode(p).shape == actions.shape
    assert distribution.entropy(p).shape == (7,)
    np.testing.assert_allclose(distribution.kl(p, p), np.zeros(7), atol=1e-12)


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_samples_have_the_distribution(name: str, squash: bool) -> None:
    """Entropy and KL are the means of −log p and log p − log q over samples."""
    distribution = make(name, squash)
    p, q, _ = (x[:1].repeat(20_000, 0) for x in drawn(distribution, 1))
    actions = distribution.sample(p, distribution.noise(np.random.default_rng(0), 20_000))
    log_p, log_q = distribution.log_prob(p, actions).sum(-1), distribution.log_prob(q, actions).sum(-1)
    np.testing.assert_allclose(-log_p.mean(), distribution.entropy(p[0]), atol=0.03)
    np.testing.assert_allclose((log_p - log_q).mean(), distribution.kl(p[0], q[0]), atol=0.05, rtol=0.02)


def test_squashed_density_is_that_of_the_transformed_gaussian_and_integrates_to_one() -> None:
    distribution = make("box", squash=True)
    assert isinstance(distribution, SquashedGaussian)
    p, _, u = drawn(distribution, 50)
    params, sampled = torch.from_numpy(p), torch.from_numpy(u)
    normal = torch.distributions.Normal(params[:, :3], params[:, 3:].exp())
    affine = torch.distributions.AffineTransform(torch.tensor([0.5, 0.0, 1.25]), torch.tensor([2.5, 1.0, 0.25]))
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform(), affine])
    actions = affine(torch.tanh(sampled))
    log_prob = distribution.log_prob(p, u)
    np.testing.assert_allclose(log_prob[:, [0, 2]], squashed.log_prob(actions)[:, [0, 2]], atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(log_prob[:, 1], normal.log_prob(sampled)[:, 1], rtol=1e-12)  # no bounds: as it is
    # over the actions of the first dimension, −2 … 3
    a = np.linspace(-2, 3, 100_001)[1:-1]
    grid = np.zeros((len(a), 3))
    grid[:, 0] = np.arctanh((a - 0.5) / 2.5)
    density = np.exp(distribution.log_prob(np.array([0.3, 0.0, 0.0, -0.7, 0.0, 0.0]), grid)[:, 0])
    assert float(density.sum() * (a[1] - a[0])) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("log_std", [-4.0, -1.0, 0.0, 1.0])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 1.0])
def test_entropy_of_a_squashed_action_against_an_integral(mean: float, log_std: float) -> None:
    distribution = distribution_for(spaces.Box(-2, 3, (1,)), "a test", squash=True)
    std = math.exp(log_std)
    u = np.linspace(mean - 10 * std, mean + 10 * std, 20_001)
    density = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    log_derivative = math.log(2.5) + np.log1p(
        -(np.tanh(u) ** 2), where=np.abs(u) < 15, out=2 * (math.log(2) - np.abs(u))
    )
    expected = 0.5 * math.log(2 * math.pi * math.e) + log_std + float((density * log_derivative).sum() * (u[1] - u[0]))
    entropy = distribution.entropy(np.array([mean, log_std]))
    assert float(entropy) == pytest.approx(expected, abs=3e-3)


def test_saturated_squashed_actions_keep_finite_densities() -> None:
    distribution = distribution_for(spaces.Box(-1, 1, (1,)), "a test", squash=True)
    log_prob = distribution.log_prob(np.array([40.0, 0.0]), np.array([40.0]))
    assert float(log_prob[0]) == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 40), rel=1e-5)
    assert distribution.to_env(np.array([[40.0], [-40.0]], np.float32)) == [1.0, -1.0]


def test_the_parameters_of_a_joint_are_all_network_outputs_then_all_state_independent_parameters() -> None:
    joint = distribution_for(spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]), "a test")
    assert (joint.num_outputs, joint.num_params, joint.action_size) == (5, 7, 3)
    box, discrete = DiagonalGaussian(spaces.Box(-1, 1, (2,))), Categorical(spaces.Discrete(3))
    params = np.array([0.1, 0.2, 1.0, 2.0, 3.0, -0.5, -0.6])
    action = np.array([0.4, 0.5, 2.0])
    parts = [box.log_prob(params[[0, 1, 5, 6]], action[:2]), discrete.log_prob(params[2:5], action[2:])]
    np.testing.assert_allclose(joint.log_prob(params, action), np.concatenate(parts))


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_actions_lie_in_their_space(name: str, squash: bool) -> None:
    distribution = make(name, squash)
    p, _, actions = drawn(distribution, 50, dtype=np.float32)
    for rows in (10 * actions if "box" in name else actions, distribution.mode(p)):
        given = distribution.to_env(rows)
        assert len(given) == 50
        assert all(SPACES[name.partition(",")[0]].contains(action) for action in given)


def test_actions_by_hand() -> None:
    space = spaces.Box(np.array([[-1.0, -2.0]], np.float32), np.array([[1.0, 2.0]], np.float32))
    actions = DiagonalGaussian(space).to_env(np.array([[5.0, -0.5], [-5.0, -5.0]], np.float32))
    np.testing.assert_array_equal(actions, [[[1.0, -0.5]], [[-1.0, -2.0]]])
    actions = SquashedGaussian(space).to_env(np.array([[0.5, 0.0]], np.float32))
    np.testing.assert_allclose(actions, [[[math.tanh(0.5), 0.0]]], rtol=1e-7)
    assert Categorical(spaces.Discrete(3, start=-1)).to_env(np.array([[0.0], [2.0]], np.float32)) == [-1, 1]
    one: Any = make("nested", squash=True).to_env(np.array([[0, 7, 9, 0, 1, 1, 0, 1, 4, 2]], np.float32))[0]
    np.testing.assert_array_equal(one["arm"][0], np.array([0.5, 7.0, 1.5], np.float32))
    np.testing.assert_array_equal(one["arm"][1], [[0, 1], [1, 0]])
    # the order of a Dict's parts is its space's: arm, buttons, gear
    np.testing.assert_array_equal(one["buttons"], [[5, 4]])
    assert one["gear"] == 1


REFUSED = {
    "Text": (spaces.Text(4), r"--env MyEnv-v0 has the action space Text\("),
    "uint8": (spaces.Box(0, 255, (2,), np.uint8), r"--env MyEnv-v0 has the action space Box\("),
    "Sequence": (spaces.Sequence(spaces.Discrete(2)), r"has the action space Sequence\("),
    "Graph": (spaces.Graph(spaces.Discrete(2), None), r"has the action space Graph\("),
    "part": (spaces.Dict({"say": spaces.Text(4)}), r"--env MyEnv-v0: part 'say' has the action space Text\("),
    "empty": (spaces.Tuple([]), r"has the action space Tuple\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_action_space_is_refused_by_name(name: str) -> None:
    space, message = REFUSED[name]
    with pytest.raises(
        ConfigError, match=message + r".*supported are Box of floats, Discrete, MultiDiscrete"
    ) as raised:
        distribution_for(space, "--env MyEnv-v0")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_arrays_on_a_device_give_the_numbers_of_numpy(name: str, squash: bool) -> None:
    distribution = make(name, squash)
    p, q, actions = drawn(distribution, 50, dtype=np.float32)
    upstream = np.random.default_rng(1).standard_normal((50, 1)).astype(np.float32)
    calls: dict[str, tuple[np.ndarray, ...]] = {
        "log_prob": (p, actions), "entropy": (p,), "kl": (p, q), "log_prob_grad": (p, actions, upstream),
        "entropy_grad": (p,), "kl_grad": (p, q),
    }  # fmt: skip
    for method, arguments in calls.items():
        function = getattr(distribution, method)
        found = function(*(DeviceArray(torch.from_numpy(argument)) for argument in arguments))
        assert found.dtype == torch.float32, method
        np.testing.assert_allclose(found.tensor.numpy(), function(*arguments), rtol=2e-5, atol=2e-6, err_msg=method)


@pytest.mark.parametrize("name", ["box", "box64", "discrete", "multi-binary", "box64, beta", "unit-box, beta"])
def test_named_parameters_are_those_of_torch(name: str) -> None:
    distribution = make(name)
    params = drawn(distribution, 6)[0]
    expected = torch_distribution(distribution, torch.from_numpy(params))
    expected = getattr(expected, "base_dist", expected)
    names = {"mean": "mean", "std": "stddev", "probabilities": "probs", "alpha": "concentration1"}
    for key, array in distribution.named(params).items():
        of_torch = getattr(expected, names.get(key, "concentration0"))
        np.testing.assert_allclose(array, of_torch.reshape(array.shape), rtol=1e-6)
