"""Values that are refused: inputs of a loaded policy, and what environments return."""

from __future__ import annotations

import dataclasses
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
    "batch": (np.zeros((1, 3)), None, r"\(1, 3\), but .* \(3,\); act takes one observation, without a batch dim"),
    "state of another shape": (np.zeros(3), np.zeros(5), r"state has shape \(5,\); give what act or initial_state has"),
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
    state = policy.initial_state() if state is None else state
    with raises("ValueError", message):
        policy.act(obs, state)


def test_a_policy_accepts_no_state_at_the_start_of_an_episode(pendulum: Path) -> None:
    policy, obs = load_policy(pendulum), np.array([1.0, 0.0, 0.5])
    action, state = policy.act(obs, None)
    again, state_again = policy.act(obs, policy.initial_state())
    np.testing.assert_array_equal([*action, *state], [*again, *state_again])


def test_a_directory_without_a_run_has_no_policy(tmp_path: Path) -> None:
    with refused(r"is not the directory of a run, because it contains no config\.json"):
        load_policy(tmp_path)


def test_a_policy_refuses_a_previous_action_that_is_no_action(tmp_path: Path) -> None:
    train(dataclasses.replace(SMALL, env="CartPole-v1", prev_action=True, run_dir=str(tmp_path / "run")))
    policy = load_policy(tmp_path / "run")
    state, obs = policy.initial_state(), np.zeros(4, np.float32)
    for good in ([0, 0], [1, 0], [0, 1], [0.0, 1.0]):
        policy.act({"obs": obs, "prev_action": np.array(good)}, state)
    for bad in ([1, 1], [0, 2], [0, -1], [0.5, 0.5], [0, np.nan]):
        with raises("ValueError", r"part 'prev_action' of obs is |not finite"):
            policy.act({"obs": obs, "prev_action": np.array(bad)}, state)
    with raises("ValueError", r"part 'prev_action' of obs has shape \(3,\)"):
        policy.act({"obs": obs, "prev_action": np.zeros(3)}, state)


BOX, BITS = spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)
ODD: dict[str, tuple[Any, Any, Any]] = {
    "text": (BOX, ["0.5", "0.5"], 0.0),
    "complex": (BOX, np.array([0.5j, 0]), 0.0),
    "objects": (BOX, np.array([0.5, 0], object), 0.0),
    "bits of text": (BITS, np.array(["1", "0"]), 0.0),
    "complex bits": (BITS, np.array([1j * 1j + 1, 0]), 0.0),
    "codes of text": (spaces.MultiDiscrete([2, 2]), np.array(["1", "0"]), 0.0),
    "reward of text": (BOX, np.zeros(2, np.float32), np.array("1")),
    "complex reward": (BOX, np.zeros(2, np.float32), np.array(1j)),
    "outside of Discrete": (spaces.Discrete(3), 7, 0.0),
    "outside of MultiBinary": (BITS, np.array([2, 0], np.int8), 0.0),
}


@pytest.mark.parametrize("case", ODD)
def test_an_environment_whose_values_do_not_belong_to_its_space_is_refused_at_the_start(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    space, observation, reward = ODD[case]
    monkeypatch.setattr(Counter, "__init__", lambda self: setattr(self, "observation_space", space))
    monkeypatch.setattr(Counter, "reset", lambda self, **_: (observation, {}))
    monkeypatch.setattr(Counter, "step", lambda self, _: (observation, reward, False, False, {}))
    with refused(r"returned an observation|returned the reward"):
        train(dataclasses.replace(SMALL, env="environments:Counter", run_dir=str(tmp_path / "run")))
