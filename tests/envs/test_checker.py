"""Environments that break the Gymnasium API are refused before any process starts. The message names the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from environments import Counter
from gymnasium import spaces

from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import broken_rule, check_contract
from shmppo.errors import ConfigError
from shmppo.runs.trainer import train

OBSERVED = np.zeros(2)
STEPPED = (OBSERVED, 0.0, False, False, {})


class Returns(Counter):
    """Returns the given results from every reset and every step."""

    def __init__(self, reset: Any = (OBSERVED, {}), step: Any = STEPPED) -> None:
        super().__init__()
        self.results = reset, step

    def reset(self, **arguments: Any) -> Any:
        return self.results[0]

    def step(self, action: int) -> Any:
        return self.results[1]


BROKEN = [
    ({"reset": OBSERVED}, r"reset returned array\(\[0., 0.\]\); reset must return \(observation, info\)"),
    ({"reset": (OBSERVED, None)}, r"reset returned .*; reset must return \(observation, info\), info a dict"),
    (
        {"reset": (np.zeros(3), {})},
        r"reset returned the observation .*, but its shape is \(3,\), not \(2,\); correct the observation",
    ),
    ({"reset": (np.array(["a", "b"]), {})}, r"its type is <U1, not float64"),
    ({"reset": (np.array([0.0, np.nan]), {})}, "it is not finite"),
    ({"step": STEPPED[:4]}, r"step returned .*; step must return \(observation, reward, terminated, truncated, info\)"),
    ({"step": (OBSERVED, np.zeros(1), False, False, {})}, r"the reward array\(\[0.\]\); it must be one number"),
    ({"step": (OBSERVED, "1", False, False, {})}, "the reward '1'; it must be one number"),
    ({"step": (OBSERVED, 0.0, 0, False, {})}, "terminated = 0; it must be a bool"),
    ({"step": (OBSERVED, 0.0, False, None, {})}, "truncated = None; it must be a bool"),
    ({"step": (OBSERVED, 0.0, False, False, None)}, "the info None; step must return"),
]


@pytest.mark.parametrize(("results", "message"), BROKEN)
def test_a_broken_rule_is_named_before_anything_starts(results: dict[str, Any], message: str, tmp_path: Path) -> None:
    gymnasium.register("Broken-v0", entry_point=lambda: Returns(**results))
    try:
        with pytest.raises(ConfigError, match=rf"--env Broken-v0: .*{message}"):
            train(TrainConfig(env="Broken-v0", run_dir=str(tmp_path / "run"), quiet=True))
    finally:
        del gymnasium.registry["Broken-v0"]
    assert not (tmp_path / "run").exists()


def test_an_environment_that_raises_is_refused_with_its_exception() -> None:
    class Explodes(Returns):
        def step(self, action: int) -> Any:
            raise ValueError("boom")

    with pytest.raises(
        ConfigError, match=r"step\(action\) raised ValueError\('boom'\) in a check before the run; correct"
    ):
        check_contract(Explodes(), "--env X", "episode")


def test_the_bounds_and_types_of_a_space() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert broken_rule(box, np.array([1.0, -1.0])) is None, "another precision is allowed"
    assert broken_rule(box, np.array([1.000001, 0.0])) is None, "rounding errors are allowed"
    assert broken_rule(box, np.array([1.1, 0.0])) == "it is outside the bounds"
    image = spaces.Box(0, 255, (2,), np.uint8)
    assert broken_rule(image, np.array([0.5, 1.0])) == "its type is float64, not uint8"
    assert broken_rule(image, np.array([0, 255], np.uint8)) is None
    assert broken_rule(spaces.Discrete(3), 3) == "it is not in the space"
    assert broken_rule(spaces.Discrete(3), 2) is None
    both = spaces.Dict(a=box, b=spaces.Tuple((spaces.Discrete(2), image)))
    good = {"a": np.zeros(2), "b": (1, np.zeros(2, np.uint8))}
    assert broken_rule(both, good) is None
    assert broken_rule(both, good | {"b": (2, np.zeros(2, np.uint8))}) == "part 'b': part 0: it is not in the space"
    assert broken_rule(both, {"a": np.zeros(2)}) == "it is not a dict with the parts ['a', 'b']"
    assert broken_rule(both, 3) == "it is not a dict with the parts ['a', 'b']"
