"""Opponents in evaluations that are functions: their actions must have the form of the action space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces

from shmppo.envs.agents_vector_env import AgentsVectorEnv
from shmppo.errors import ConfigError
from shmppo.sampling.evaluation_opponents import FunctionOpponent

BOX = spaces.Box(-1, 1, (2,))


def envs_with(space: spaces.Space[Any], seen: Any, *, has_mask: bool = False) -> AgentsVectorEnv:
    """One row whose agent sees something."""
    observation, handles = SimpleNamespace(has_mask=has_mask), [SimpleNamespace(index=0)]
    envs = SimpleNamespace(action_space=space, handles=handles, seen=lambda i: seen, observation=observation)
    return cast(AgentsVectorEnv, envs)


@pytest.mark.parametrize(
    ("space", "right", "wrong"),
    [
        (BOX, [[0, 1], np.zeros(2), (2.5, -3)], [None, 1.0, [1.0], "up", [0, 0, 0], ["a", "b"], [[0], [0, 1]]]),
        (spaces.Box(-1, 1, ()), [0.5, np.float32(2)], [None, "up", [0.5]]),
        (spaces.Discrete(3), [0, np.int64(2)], [None, 3, -1, 0.5, [1]]),
        (spaces.MultiDiscrete([2, 3]), [np.array([1, 2])], [None, np.array([2, 0]), 1]),
        (spaces.Dict(arm=BOX), [{"arm": np.zeros(2)}], [None]),
        (spaces.Tuple([BOX, spaces.Discrete(2)]), [(np.zeros(2), 1)], [None]),
    ],
)
def test_an_action_has_the_form_of_the_action_space(
    space: spaces.Space[Any], right: list[Any], wrong: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = envs_with(space, None)
    opponent = FunctionOpponent("random")
    opponent.begin(envs, seed=1)
    for action in right:
        monkeypatch.setattr(opponent, "_choose", lambda *_, action=action: action)
        assert opponent.act([0]) == [action] or np.array_equal(opponent.act([0])[0], action)
    for action in wrong:
        monkeypatch.setattr(opponent, "_choose", lambda *_, action=action: action)
        with pytest.raises(ConfigError, match=r"--opponent random returned .*; it must return an action of "):
            opponent.act([0])


MASKED: list[tuple[spaces.Space[Any], list[int], list[Any], list[Any]]] = [
    (spaces.Discrete(3, start=2), [1, 0, 1], [2, np.int64(4)], [3]),
    (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [np.array([0, 1])], [np.array([1, 1]), np.array([0, 0])]),
]


@pytest.mark.parametrize(("space", "mask", "right", "wrong"), MASKED)
def test_an_action_must_be_allowed_by_the_mask(
    space: spaces.Space[Any], mask: list[int], right: list[Any], wrong: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"obs": np.zeros(2), "action_mask": np.array(mask, np.int8)}
    envs = envs_with(space, seen, has_mask=True)
    opponent = FunctionOpponent("random", "--eval-opponent")
    opponent.begin(envs, seed=1)
    for action in right:
        monkeypatch.setattr(opponent, "_choose", lambda *_, action=action: action)
        assert np.array_equal(opponent.act([0])[0], action)
    for action in wrong:
        monkeypatch.setattr(opponent, "_choose", lambda *_, action=action: action)
        with pytest.raises(
            ConfigError, match=r"--eval-opponent random returned .*, which the action mask forbids; correct the"
        ):
            opponent.act([0])


def test_an_exception_of_the_function_is_an_error_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = envs_with(BOX, {"obs": 1})
    opponent = FunctionOpponent("random")
    opponent.begin(envs, seed=1)
    monkeypatch.setattr(opponent, "_choose", lambda seen, *_: seen["observation"])
    with pytest.raises(ConfigError, match=r"^--opponent random raised KeyError\('observation'\) at .*; correct the"):
        opponent.act([0])
