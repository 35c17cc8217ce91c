"""Action distributions: densities, entropies, divergences, and the actions that environments get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from helpers import torch_distribution

from shmppo.spaces.action_spaces import distribution_for
from shmppo.spaces.distributions import Distribution, StateStd

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


OF_TORCH = {"mean": "mean", "std": "stddev", "probabilities": "probs", "alpha": "concentration1"}
OF_TORCH["beta"] = "concentration0"


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("box", ["mean", "std"]), ("box64", ["mean", "std"]), ("discrete", ["probabilities"]),
        ("multi-binary", ["probabilities"]), ("box64, beta", ["alpha", "beta"]), ("unit-box, beta", ["alpha", "beta"]),
    ],
)  # fmt: skip
def test_named_parameters_are_those_of_torch(name: str, keys: list[str]) -> None:
    distribution, space = make(name), SPACES[name.partition(", ")[0]]
    params = drawn(distribution, 6)[0]
    expected = torch_distribution(distribution, torch.from_numpy(params))
    expected = getattr(expected, "base_dist", expected)
    found = distribution.named(params)
    assert list(found) == keys
    for key, array in found.items():
        assert array.shape == (6, *(space.shape or (5,)))
        of_torch = getattr(expected, OF_TORCH[key])
        np.testing.assert_allclose(array.reshape(6, -1), of_torch, rtol=1e-6)


def test_named_parameters_of_a_nested_action_are_those_of_its_parts() -> None:
    distribution = make("nested, state")
    params = drawn(distribution, 6)[0]
    found = distribution.named(params)
    assert list(found) == list(NESTED)
    assert {key: list(part) for key, part in found.items()} == {
        "arm": [0, 1], "buttons": [0, 1], "gear": ["probabilities"]
    }  # fmt: skip
    mean, std = found["arm"][0]["mean"], found["arm"][0]["std"]
    actions = distribution.sample(params, distribution.noise(np.random.default_rng(0), 6))
    z = (actions[:, :3] - mean) / std
    expected = -0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(
        distribution.log_prob(distribution.normalized(params), actions)[:, :3], expected, rtol=1e-6
    )
    for part in (found["gear"], *found["buttons"].values()):
        np.testing.assert_allclose(part["probabilities"].sum(-1), 1, rtol=1e-6)
    assert found["arm"][1]["probabilities"].shape == (6, 2, 2)
