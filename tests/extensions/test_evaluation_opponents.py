"""Opponents in evaluations that are functions: their actions must have the form of the action space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces

from shmppo.errors import ConfigError
from shmppo.extensions.agents.players import FunctionOpponent
from shmppo.extensions.agents.vector_env import AgentsVectorEnv

BOX = spaces.Box(-1, 1, (2,))
ANSWERS: list[Any] = []
"""The next action of `answer`."""


def answer(observation: Any, space: spaces.Space[Any], generator: np.random.Generator) -> Any:
    return ANSWERS.pop()


def look_for_a_part(observation: Any, space: spaces.Space[Any], generator: np.random.Generator) -> Any:
    return observation["observation"]


def opponent_of(function: str, space: spaces.Space[Any], seen: Any, *, has_mask: bool = False) -> FunctionOpponent:
    """A function of this module that acts in one row, whose agent sees something."""
    observation, handles = SimpleNamespace(has_mask=has_mask), [SimpleNamespace(index=0)]
    envs = SimpleNamespace(action_space=space, handles=handles, seen=lambda i: seen, observation=observation)
    opponent = FunctionOpponent(f"test_evaluation_opponents:{function}")
    opponent.begin(cast(AgentsVectorEnv, envs), seed=1)
    return opponent


FORM = "it must return an action of "
FORBIDDEN = "which the action mask forbids; correct the function"
ACTIONS: list[tuple[spaces.Space[Any], list[int] | None, list[Any], list[Any], str]] = [
    (BOX, None, [[0, 1], np.zeros(2), (2.5, -3)], [None, 1.0, [1.0], "up", [0, 0, 0], ["a", "b"], [[0], [0, 1]]], FORM),
    (spaces.Box(-1, 1, ()), None, [0.5, np.float32(2)], [None, "up", [0.5]], FORM),
    (spaces.Discrete(3), None, [0, np.int64(2)], [None, 3, -1, 0.5, [1]], FORM),
    (spaces.MultiDiscrete([2, 3]), None, [np.array([1, 2])], [None, np.array([2, 0]), 1], FORM),
    (spaces.Dict(arm=BOX), None, [{"arm": np.zeros(2)}], [None], FORM),
    (spaces.Tuple([BOX, spaces.Discrete(2)]), None, [(np.zeros(2), 1)], [None], FORM),
    (spaces.Discrete(3, start=2), [1, 0, 1], [2, np.int64(4)], [3], FORBIDDEN),
    (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [np.array([0, 1])], [np.array([1, 1]), np.array([0, 0])],
     FORBIDDEN),
]  # fmt: skip


@pytest.mark.parametrize(("space", "mask", "right", "wrong", "message"), ACTIONS)
def test_an_action_has_the_form_of_the_action_space_and_is_allowed_by_the_mask(
    space: spaces.Space[Any], mask: list[int] | None, right: list[Any], wrong: list[Any], message: str
) -> None:
    seen = {"obs": np.zeros(2), "action_mask": np.array(mask, np.int8)} if mask else None
    opponent = opponent_of("answer", space, seen, has_mask=mask is not None)
    for action in right:
        ANSWERS.append(action)
        assert opponent.choose([0])[0] is action
    for action in wrong:
        ANSWERS.append(action)
        with pytest.raises(ConfigError, match=rf"--opponent \S+:answer returned .*{message}"):
            opponent.choose([0])


def test_an_exception_of_the_function_is_an_error_in_one_sentence() -> None:
    opponent = opponent_of("look_for_a_part", BOX, {"obs": 1})
    message = r"^--opponent \S+:look_for_a_part raised KeyError\('observation'\) at .*; correct the"
    with pytest.raises(ConfigError, match=message):
        opponent.choose([0])
