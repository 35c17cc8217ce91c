"""Inputs that a loaded policy refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_helpers import raises

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
