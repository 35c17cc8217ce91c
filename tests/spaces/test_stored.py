"""Spaces as JSON: every supported space comes back as it was, and differences are named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shmppo.spaces.stored import differences, space_from_json, space_to_json

SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(np.array([-1.1, 0.0], np.float32), np.array([np.inf, 0.3], np.float32)),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(-2, 7, (), np.int64),
    spaces.Box(0, 1, (0,), np.float32),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32, start=np.array([[1, 0], [0, -2]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Dict({"b/c": spaces.Box(0, 1, (1,))}))]),
    spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.MultiBinary(1)])]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back(space: spaces.Space[Any]) -> None:
    stored = json.loads(json.dumps(space_to_json(space), allow_nan=False))
    again = space_from_json(stored)
    assert (again, str(again)) == (space, str(space))
    assert list(differences(stored, space_to_json(again), "space")) == []
    if isinstance(space, spaces.Dict):
        assert list(again) == list(space)  # type: ignore[call-overload]


BOX = spaces.Box(-1, 1, (2,))
DIFFERENT = [
    (spaces.Discrete(4), spaces.MultiBinary(4), "space is MultiBinary, and was Discrete in training", False),
    (spaces.Discrete(4), spaces.Discrete(5), "n of space is 5 and was 4 in training", False),
    (spaces.Discrete(4), spaces.Discrete(4, start=1), "start of space is 1 and was 0 in training", False),
    (BOX, spaces.Box(-1, 2, (2,)), "high of space is 2.0 and was 1.0 in training", True),
    (BOX, spaces.Box(-1, 1, (2,), np.float64), "dtype of space is float64 and was float32 in training", False),
    (BOX, spaces.Box(-1, 1, (1, 2)), "shape of space is [1, 2] and was [2] in training", False),
    (spaces.Dict(a=BOX, goal=BOX), spaces.Dict(a=BOX, target=BOX), "space['goal'] is missing", False),
    (spaces.Dict(a=BOX), spaces.Dict(a=BOX, b=BOX), "space['b'] is new", False),
    (spaces.Dict([("a", BOX), ("b", BOX)]), spaces.Dict([("b", BOX), ("a", BOX)]), "another order", False),
    (spaces.Tuple([BOX, BOX]), spaces.Tuple([BOX, spaces.Discrete(2)]), "space[1] is Discrete, and was Box", False),
    (spaces.Box(0, 255, (8, 8, 1), np.uint8), spaces.Box(0, 1, (8, 8, 1), np.uint8), "high of space is 1 and was",
     True),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "text", "of_bounds"), DIFFERENT, ids=[case[2] for case in DIFFERENT])
def test_the_first_difference_is_named(before: Any, now: Any, text: str, of_bounds: bool) -> None:
    first = next(differences(space_to_json(before), space_to_json(now), "space"))
    assert text in first.text
    assert first.of_bounds == of_bounds
