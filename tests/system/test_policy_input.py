"""Values that are refused: inputs of a loaded policy, and what environments return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import Counter
from gymnasium import spaces
from public_helpers import raises, refused

from shmppo import TrainConfig, load_policy, train

SMALL = TrainConfig(
    env="Pendulum-v1", hide_obs=(), num_envs=2, rollout_steps=16, minibatches=1, epochs=1, hidden_size=8, workers=0,
    quiet=True, total_steps=2 * 16, seq_len=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose policy observes [3], without limits."""
    run_dir = tmp_path_factory.mktemp("pendulum") / "run"
    train(dataclasses.replace(SMALL, run_dir=str(run_dir)))
    return run_dir


INPUTS: dict[str, tuple[Any, Any, str]] = {
    "short": (np.zeros(2), None, r"obs has shape \(2,\), but its space has shape \(3,\)"),
    "batch of other numbers": (np.zeros((4, 2)), None, r"obs has shape \(4, 2\), but its space has shape \(4, 3\)"),
    "batch with one state": (np.zeros((4, 3)), np.zeros(16), r"\(16,\), not \(4, 16\); .* initial_state\(4\)"),
    "two batch axes": (np.zeros((1, 1, 3)), None, r"obs has shape \(1, 1, 3\), but its space has shape \(3,\)"),
    "state of another shape": (np.zeros(3), np.zeros(5), r"state has shape \(5,\), not \(16,\); give what"),
    "list": ([{"a": 1.0}, {"a": 2.0}], None, "obs is a list; pass one dict of arrays that have n as the first axis"),
    "NaN": (np.full(3, np.nan), None, "obs or state is not finite"),
    "infinite state": (np.zeros(3), np.full(16, np.inf), "obs or state is not finite"),
    "text as state": (np.zeros(3), np.array(["a"] * 16), r"state has type .*; give what act or initial_state has"),
} | {
    str(bad): (np.array(bad), None, r"obs has type .*, but it must contain real numbers")
    for bad in (["a", "b", "c"], [1j, 0, 0], ["0.5", "0", "0"], [None, 0, 0], [b"1", b"0", b"0"])
}  # fmt: skip


@pytest.mark.parametrize("case", INPUTS)
def test_a_policy_refuses_what_is_no_observation_or_state(case: str, pendulum: Path) -> None:
    obs, state, message = INPUTS[case]
    policy = load_policy(pendulum)
    with raises("ValueError", message):
        policy.act(obs, state)


def test_a_policy_accepts_no_state_at_the_start_of_an_episode(pendulum: Path) -> None:
    policy, obs = load_policy(pendulum), np.array([1.0, 0.0, 0.5])
    action, state = policy.act(obs)
    again, state_again = policy.act(obs, policy.initial_state())
    np.testing.assert_array_equal([*action, *state], [*again, *state_again])


BOX, BITS = spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)
ODD: dict[str, tuple[Any, Any]] = {
    "text": (BOX, ["0.5", "0.5"]),
    "array of text": (BOX, np.array(["0.5", "0.5"])),
    "complex": (BOX, np.array([0.5j, 0])),
    "objects": (BOX, np.array([0.5, 0], object)),
    "bits of text": (BITS, np.array(["1", "0"])),
    "complex bits": (BITS, np.array([1j * 1j + 1, 0])),
    "outside of MultiBinary": (BITS, np.array([2, 0], np.int8)),
    "outside of Discrete": (spaces.Discrete(3), 7),
    "codes of text": (spaces.MultiDiscrete([2, 2]), np.array(["1", "0"])),
}
REWARDS: dict[str, Any] = {"text": np.array("1"), "complex": np.array(1j)}


@pytest.fixture
def returning(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes `Counter` return a given observation, and a reward, from a step of each instance on."""

    def install(space: spaces.Space[Any], observation: Any, *, reward: Any = 0.0, first_step: int = 0) -> None:
        right = space.sample() if first_step else observation

        def step(env: Any, _: int) -> tuple[Any, Any, bool, bool, dict]:
            env.steps += 1
            wrong = env.steps >= first_step
            return (observation if wrong else right), (reward if wrong else 0.0), False, False, {}

        monkeypatch.setattr(Counter, "observation_space", space)
        monkeypatch.setattr(Counter, "steps", 0, raising=False)
        monkeypatch.setattr(Counter, "reset", lambda env, **_: (right, {}))
        monkeypatch.setattr(Counter, "step", step)

    return install


@pytest.mark.parametrize("case", ODD)
def test_an_observation_that_does_not_belong_to_its_space_is_refused_at_the_start(
    case: str, returning: Callable[..., None], tmp_path: Path
) -> None:
    returning(*ODD[case])
    with refused("returned an invalid observation"):
        train(dataclasses.replace(SMALL, env="environments:Counter", run_dir=str(tmp_path / "run")))


@pytest.mark.parametrize("case", REWARDS)
def test_a_reward_that_is_no_real_number_is_refused_at_the_start(
    case: str, returning: Callable[..., None], tmp_path: Path
) -> None:
    returning(BOX, np.zeros(2, np.float32), reward=REWARDS[case])
    with refused("returned the reward"):
        train(dataclasses.replace(SMALL, env="environments:Counter", run_dir=str(tmp_path / "run")))
