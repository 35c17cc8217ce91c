"""Environments that break the Gymnasium API are refused before any process starts. The message names the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from environments import Counter
from gymnasium import spaces

from shmppo.config.train_config import TrainConfig
from shmppo.envs.checker import check_contract, check_observation, warn_of_spaces
from shmppo.envs.inspection import inspect_task
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.envs.wrappers import random_action
from shmppo.errors import ConfigError, EnvError
from shmppo.runs.launch import train
from shmppo.runs.outputs import Outputs
from shmppo.spaces.observations import observation_spec
from shmppo.utils.global_generators import OwnGenerators

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
    ({"reset": OBSERVED}, r"reset returned the info .*0.0.*; it must return \(observation, info\), info a dict$"),
    ({"reset": {}}, r"unpacking the result of reset raised .*; it must return \(observation, info\), info a dict$"),
    ({"reset": (OBSERVED,)}, r"unpacking the result of reset raised .*got 1.*; it must return"),
    ({"reset": (OBSERVED, None)}, r"reset returned the info None; it must return \(observation, info\), info a dict$"),
    ({"reset": (np.zeros(3), {})},
     r"reset returned an invalid observation: obs has shape \(3,\), but its space has shape \(2,\); "
     "correct the observation or observation_space$"),
    ({"reset": (np.array(["a", "b"]), {})},
     "an invalid observation: obs has type <U1, but it must contain real numbers; correct the observation or "
     "observation_space$"),
    ({"reset": (np.array([0.0, np.nan]), {})}, r"an invalid observation: obs is not finite: \[1\] is nan; correct"),
    ({"step": STEPPED[:4]}, r"step\(action\) raised .*got 4.*; it must return \(observation, reward, "),
    ({"step": None}, r"step\(action\) raised TypeError.*; it must return"),
    ({"step": (OBSERVED, np.zeros(1), False, False, {})}, r"the reward array\(\[0.\]\); it must be one number"),
    ({"step": (OBSERVED, "1", False, False, {})}, "the reward '1'; it must be one number"),
    ({"step": (OBSERVED, np.array("1"), False, False, {})}, "the reward array"),
    ({"step": (OBSERVED, np.array(1j), False, False, {})}, "the reward array"),
    ({"step": (OBSERVED, 0.0, 0, False, {})}, "terminated = 0; it must be a bool"),
    ({"step": (OBSERVED, 0.0, False, None, {})}, "truncated = None; it must be a bool"),
    ({"step": (OBSERVED, 0.0, False, False, None)}, "step returned the info None; it must return"),
]  # fmt: skip


@pytest.mark.parametrize(("results", "message"), BROKEN)
def test_a_broken_rule_is_named_before_anything_starts(results: dict[str, Any], message: str, tmp_path: Path) -> None:
    gymnasium.register("Broken-v0", entry_point=lambda: Returns(**results))
    try:
        with pytest.raises(ConfigError, match=rf"--env Broken-v0: .*{message}"):
            train(TrainConfig(env="Broken-v0", run_dir=str(tmp_path / "run"), quiet=True))
    finally:
        del gymnasium.registry["Broken-v0"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reward", [None, 1j, [1.0]], ids=repr)
def test_a_later_reward_that_is_no_number_ends_the_run(reward: Any) -> None:
    class Changes(Returns):
        def step(self, action: int) -> Any:
            return OBSERVED, reward, False, False, {}

    gymnasium.register("Changes-v0", entry_point=Returns)
    try:
        config = TrainConfig(env="Changes-v0", num_envs=1, minibatches=1)
        task = inspect_task(config)
        gymnasium.registry["Changes-v0"].entry_point = Changes
        envs = SyncVectorEnv(config, task, 0, 1)
        envs.reset_all(0)
        with pytest.raises(EnvError, match=r"environment 0: step returned .*; it must return \(observation, reward, "):
            envs.step([0], np.zeros(1), *np.zeros((2, 1), bool))
    finally:
        del gymnasium.registry["Changes-v0"]


def contract_of(env: gymnasium.Env) -> tuple[str, bool]:
    return check_contract(env, "--env X", lambda seen: random_action(env.action_space), OwnGenerators(()))


def test_an_environment_that_raises_is_refused_with_its_exception() -> None:
    class Explodes(Returns):
        def step(self, action: int) -> Any:
            raise ValueError("boom")

    with pytest.raises(
        ConfigError,
        match=r"step\(action\) raised ValueError\('boom'\) at .*test_checker.py:\d+ in a check .*; it must",
    ):
        contract_of(Explodes())


class OnDevice:
    """Like a tensor on a GPU."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("copy it to the memory of the host.")


NO_IMAGE = spaces.Box(0, 255, (0, 4, 3), np.uint8)
BOX, BYTES = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(0, 255, (2,), np.uint8)
BOTH = spaces.Dict(a=BOX, b=spaces.Tuple((spaces.Discrete(2), BYTES)))
GOOD: dict[str, Any] = {"a": np.zeros(2), "b": (1, np.zeros(2, np.uint8))}

VIOLATIONS = [
    (spaces.Box(0, 255, (2, 2), np.uint8), np.zeros((2, 2)), "obs has type float64, but its space has type uint8"),
    (BOX, ["0.5", "0.5"], "obs has type <U3, but it must contain real numbers"),
    (BOX, np.array([0.5j, 0]), "obs has type complex128, but it must contain real numbers"),
    (BOX, np.array([0.5, 0], object), "obs has type object, but it must contain real numbers"),
    (spaces.MultiBinary(2), np.array(["1", "0"]), "obs has type <U1, but it must contain real numbers"),
    (spaces.MultiBinary(2), np.array([0j, 0]), "obs has type complex128, but it must contain real numbers"),
    (spaces.MultiDiscrete([2, 2]), np.array(["1", "0"]), "obs has type <U1, but it must contain real numbers"),
    (BOX, OnDevice(), "obs cannot be converted to an array: TypeError('copy it to the memory of the host.')"),
    (spaces.Discrete(3), 3, "obs is 3, which is outside its space"),
    (spaces.Discrete(3), 1.0, "obs has type float64, but it must contain integers"),
    (spaces.MultiBinary(50), np.full(50, 2), "obs is outside its space, whose values are 0 and 1"),
    (BOTH, GOOD | {"b": (2, GOOD["b"][1])}, "part 'b/0' of obs is 2, which is outside its space"),
    (BOTH, GOOD | {"b": (1,)}, "obs has no part 'b/1'"),
    (BOTH, {"c": 0, "b": GOOD["b"]}, "obs has no part 'a'; it has 'c', 'b'"),
    (BOTH, 3, "obs has no part 'a'"),
]


@pytest.mark.parametrize(("space", "observation", "problem"), VIOLATIONS)
def test_a_violation_names_the_part_the_cause_and_the_remedy(space: Any, observation: Any, problem: str) -> None:
    env = Returns((observation, {}))
    env.observation_space = space
    with pytest.raises(ConfigError) as raised:
        contract_of(env)
    remedy = "correct the observation or observation_space"
    assert str(raised.value) == f"--env X: reset returned an invalid observation: {problem}; {remedy}"


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (BOX, np.array([1.0, -1.0])),
        (BOX, torch.tensor([1.0, -1.0])),
        (BYTES, np.array([0, 255])),
        (spaces.Dict(a=BOX, b=NO_IMAGE), {"a": np.zeros(2), "b": np.zeros(NO_IMAGE.shape, np.uint8)}),
        (BOTH, GOOD),
    ],
)
def test_valid_observations(space: Any, observation: Any) -> None:
    env = Returns((observation, {}), (observation, *STEPPED[1:]))
    env.observation_space = space
    assert contract_of(env) == ("episode", True)


def test_values_outside_the_bounds(caplog: pytest.LogCaptureFixture) -> None:
    def outside(space: Any, observation: Any) -> list[str]:
        caplog.clear()
        check_observation("--env X", "reset", space, observation)
        return [message.removeprefix("--env X: reset returned ") for message in caplog.messages]

    assert outside(BOTH, GOOD) == []
    assert outside(BOX, np.array([1.000001, 0.0])) == [], "rounding errors are allowed"
    assert outside(BOX, np.array([1.1, 0.0])) == ["obs outside its space: [0] is 1.1"]
    many = spaces.Box(0.0, np.array([[1.0, 2.0], [3.0, 4.0]]), dtype=np.float64)
    named = "[0, 0] is 5, [0, 1] is 5, [1, 0] is 5, and 1 more"
    assert outside(many, np.full((2, 2), 5.0)) == [f"obs outside its space: {named}"]
    assert outside(BOTH, GOOD | {"a": np.array([0.0, -2.0])}) == ["part 'a' of obs outside its space: [1] is -2"]


class Fails(Returns):
    """Raises in the resets or steps of the given seeds."""

    def __init__(self, where: str, seeds: range) -> None:
        super().__init__()
        self.where, self.seeds = where, seeds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.bad = seed in self.seeds
        if self.bad and self.where == "reset":
            raise ConnectionError("the server is not up yet")
        return super().reset()

    def step(self, action: int) -> Any:
        if self.bad and self.where == "step":
            raise ConnectionError("the server is gone")
        return super().step(action)


@pytest.mark.parametrize("where", ["reset", "step"])
def test_only_a_type_error_about_the_seed_means_that_an_environment_takes_none(where: str) -> None:
    for error in ("the server is not up yet", "the server is gone")[where == "step" :][:1]:
        with pytest.raises(ConfigError, match=rf"raised ConnectionError\('{error}'\)"):
            contract_of(Fails(where, range(1)))

    class Unseeded(Returns):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    assert contract_of(Unseeded()) == ("never", True)


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_check_skips_failing_episodes_but_no_broken_rule(where: str) -> None:
    env = Fails(where, range(3))
    choose = lambda seen: random_action(env.action_space)  # noqa: E731
    assert check_contract(env, "--env X", choose, OwnGenerators(()), attempts=4) == ("episode", True)
    with pytest.raises(ConfigError, match="raised ConnectionError"):
        check_contract(env, "--env X", choose, OwnGenerators(()), attempts=3)
    env.results = (OBSERVED, None), STEPPED
    with pytest.raises(ConfigError, match="reset returned the info None"):
        check_contract(env, "--env X", choose, OwnGenerators(()), attempts=20)


@pytest.mark.parametrize("masks", [False, True])
def test_a_mask_that_the_policy_does_not_read_is_warned_of(masks: bool, caplog: pytest.LogCaptureFixture) -> None:
    found = warnings_of(caplog, env="space_environments:Masked-v0", env_kwargs={"sizes": [3]}, action_masks=masks)
    expected = "--env space_environments:Masked-v0: info has an action_mask, which the policy does not read; add "
    assert found == [] if masks else found[0] == f"{expected}--action-masks"


def warnings_of(caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    caplog.clear()
    inspect_task(TrainConfig(num_envs=1, minibatches=1, **options))
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("wrapper", ["TimeLimit(max_episode_steps=1000)", "TimeLimit(max_episode_steps=200)"])
def test_a_time_limit_without_an_effect_is_warned_of(wrapper: str, caplog: pytest.LogCaptureFixture) -> None:
    found = warnings_of(caplog, env="Pendulum-v1", wrappers=(wrapper,))
    assert ["use --env-kwargs max_episode_steps=1000" in text for text in found] == [True] * ("1000" in wrapper)
    assert warnings_of(caplog, env="Pendulum-v1", env_kwargs={"max_episode_steps": 1000}) == []


@pytest.mark.parametrize(
    ("observed", "text"),
    [
        ([1.7e9, 0.0], r"obs is too large for float32, which rounds away small changes: [0] is 1.7e+09; subtract"),
        ([2.0**24 + 1, 0.0], "too large"),
        ([2.0**24, 1.0 + 1e-12], ""),
    ],
)
def test_numbers_that_float32_cannot_hold_are_warned_of(
    observed: list[float], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    contract_of(Returns(reset=(np.array(observed), {})))
    assert (text in caplog.text) if text else "too large" not in caplog.text


@pytest.mark.parametrize(
    ("low", "high", "warned"), [(0, 100, True), (-1, 1, False), (-2, 2, False), (0, 1, False), (-50, 50, True)]
)
def test_bounds_of_actions_far_from_a_new_policy_are_warned_of(
    low: float, high: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        "env": "Pendulum-v1", "wrappers": (f"RescaleAction(min_action={low}, max_action={high})",),
    }  # fmt: skip
    assert ["the bounds of the actions are" in text for text in warnings_of(caplog, **options)] == [True] * warned
    assert warnings_of(caplog, **options, squash_actions=True) == []


def test_an_image_of_floats_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    env = Returns()
    env.observation_space = spaces.Dict(camera=spaces.Box(0, 1, (3, 64, 48)), small=spaces.Box(0, 1, (9, 3)))
    warn_of_spaces(observation_spec(env.observation_space, "X"), env, "X", scaled=False)
    (record,) = caplog.records
    assert "part 'camera' of obs with shape (3, 64, 48) is no image" in record.getMessage()


def test_warnings_of_the_checks_are_shown_at_the_start(tmp_path: Path) -> None:
    config = TrainConfig(
        env="Pendulum-v1", wrappers=("TimeLimit(max_episode_steps=1000)",), num_envs=1, minibatches=1, workers=0,
        rollout_steps=8, total_steps=8, run_dir=str(tmp_path / "run"), check_determinism=0, hidden_size=8,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        shown: list[str] = []
        patched.setattr(Outputs, "note", lambda _, text: shown.append(text))
        train(config)
    assert ["has no effect" in text for text in shown] == [True]
    assert (tmp_path / "run" / "run.log").read_text().count("has no effect") == 1
