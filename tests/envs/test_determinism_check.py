"""The check that an environment is a function of its seed and actions: what it finds, and that it raises no alarm."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from helpers import slow_after
from space_environments import ACTION_SPACES, SPACES, Shaped

from shmppo.config.train_config import TrainConfig
from shmppo.envs.determinism_check import Finding, Outcome, compare, make_request, outcomes
from shmppo.envs.inspection import inspect_task
from shmppo.runs.launch import train


def check(steps: int = 200, **fields: Any) -> Finding:
    """Run both sides of the check in this process. So neither the process id nor the hash seed differs."""
    config = TrainConfig(workers=0, **fields)
    task = inspect_task(config)
    sides = [outcomes(make_request(config, task, steps, alone=alone)) for alone in (True, False)]
    same = 0
    with contextlib.closing(sides[0]), contextlib.closing(sides[1]):
        for pair in zip(*sides, strict=True):
            first, second = (Outcome(*json.loads(json.dumps(outcome))) for outcome in pair)
            if finding := compare(first, second, same):
                return finding
            same = first.steps
    return Finding(same)


FOUND = {
    "GlobalCounter": (1, "observation[2] differs at step 1 of episode 0"),
    "Clock": (1, "observation[2] differs at step 1 of episode 0"),
    "LateHistory": (79, "observation[2] differs at step 40 of episode 0"),
    "KeepsBuffer": (1, "observation[1] differs at the reset of episode 0"),
    "Snapshots": (14, "observation[2] differs at step 7 of episode 1 after a restoration from a snapshot"),
}
"""For each environment the smallest number of steps that finds it, and what the check then says."""


@pytest.mark.parametrize("name", FOUND)
def test_hidden_state_is_found_with_as_many_steps_as_documented(name: str) -> None:
    steps, difference = FOUND[name]
    env = f"hidden_state:{name}"
    assert check(steps, env=env).difference == difference
    assert steps == 1 or check(steps - 1, env=env) == Finding(steps - 1)
    assert check(env=env).difference, "with the default number of steps"


@pytest.mark.parametrize("name", ["GlobalRandom", "GlobalNumpyRandom", "SeededInReset"])
def test_global_generators_are_no_hidden_state(name: str) -> None:
    assert check(200, env=f"hidden_state:{name}") == Finding(200)


def test_a_constructor_that_evaluations_call_must_not_change_training() -> None:
    kwargs = {"eval_every": 5, "eval_env_kwargs": {"scale": 2.0}}
    assert check(env="hidden_state:SetByConstructor") == Finding(200)
    found = check(env="hidden_state:SetByConstructor", **kwargs)
    assert str(found.difference).startswith("reward differs at step 11 of episode 1")


@pytest.mark.parametrize("what", ["terminated", "truncated", "reward"])
def test_the_flag_or_the_reward_that_differs_is_named(what: str) -> None:
    difference = check(env="hidden_state:Flags", env_kwargs={"what": what}).difference
    assert difference is not None
    assert difference.startswith(what)
    assert " of episode 0" in difference


def test_a_difference_that_32_bits_cannot_show_is_found() -> None:
    difference = check(env="hidden_state:SmallBits").difference
    assert difference is not None
    assert "before it is rounded to 32 bits" in difference


class Unseeded(Shaped):
    """Its observations are samples of a space that nothing seeds."""

    unseeded = copy.deepcopy(SPACES["dict"])

    def _observe(self) -> Any:
        return self.unseeded.sample()


def test_the_part_of_the_observation_is_named() -> None:
    difference = check(env="test_determinism_check:Unseeded", env_kwargs={"space": "dict"}).difference
    assert difference is not None
    assert difference.startswith("observation 'camera', ")
    assert "observation 'inner/1'[0]" in difference
    assert difference.endswith(" differ at the reset of episode 0")


def test_an_environment_that_raises_ends_the_check_without_an_alarm() -> None:
    finding = check(env="hidden_state:RaisesLate")
    assert finding.difference is None
    assert 0 < finding.steps < 30
    assert finding.problem is not None
    assert "too late" in finding.problem
    difference = check(env="hidden_state:RaisesAfterHistory").difference
    assert difference == "what the environment raises differs at step 5 of episode 0"


CLASSIC = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
MUJOCO = ["HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Ant-v5", "Walker2d-v5", "Swimmer-v5", "Reacher-v5"]
SEEDED: list[dict[str, Any]] = [
    *({"env": env} for env in CLASSIC),
    {"env": "CartPole-v1", "prev_action": True, "prev_reward": True},
    {"env": "Pendulum-v1", "hide_obs": (2,)},
    *({"env": f"environments:{name}-v0"} for name in ("Counter", "CounterTruncated", "PutsBack")),
    *({"env": "space_environments:Echo", "env_kwargs": {"actions": name}} for name in ACTION_SPACES),
    *({"env": "space_environments:Shaped", "env_kwargs": {"space": name}} for name in SPACES),
    *(
        {"env": "space_environments:Masked", "env_kwargs": {"sizes": sizes}, "action_masks": True}
        for sizes in ([4], [3, 5])
    ),
    *({"env": f"faulty_environments:FailsSometimes-{how}-v0", "skip_bad_episodes": True} for how in ("raise", "nan")),
    *({"env": f"faulty_environments:FailsAtReset-{how}-v0", "skip_bad_episodes": True} for how in ("raise", "nan")),
    *({"env": f"vector_environments:{name}", "env_backend": "vector"} for name in ("Walk", "SameStep")),
]  # fmt: skip


@pytest.mark.parametrize("fields", SEEDED, ids=str)
def test_an_environment_that_is_a_function_of_its_seed_raises_no_alarm(fields: dict[str, Any]) -> None:
    assert check(**fields) == Finding(200)


def types_of(action: Any) -> Any:
    parts = action.items() if isinstance(action, dict) else enumerate(action) if isinstance(action, tuple) else ()
    return type(action), [(key, types_of(part)) for key, part in parts], getattr(action, "dtype", None)


class SeesTypes(gymnasium.Wrapper):
    """Lists the types of all actions."""

    seen: ClassVar[list[Any]] = []

    def step(self, action: Any) -> Any:
        self.seen.append(types_of(action))
        return super().step(action)


ACTIONS = [("environments:Counter", {}), *(("space_environments:Echo", {"actions": name}) for name in ACTION_SPACES)]


@pytest.mark.parametrize(("env", "kwargs"), ACTIONS)
def test_actions_of_the_checks_have_the_types_of_training(env: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    SeesTypes.seen.clear()
    fields: dict[str, Any] = {"env": env, "env_kwargs": kwargs, "wrappers": ("test_determinism_check:SeesTypes",)}
    check(20, **fields)
    small = {"num_envs": 4, "rollout_steps": 8, "seq_len": 8, "minibatches": 2, "total_steps": 32, "quiet": True}
    config = TrainConfig(**fields, **small, workers=0, check_determinism=0, run_dir=str(tmp_path / "run"))
    train(config)
    first, *_, last = SeesTypes.seen
    assert all(types == last for types in SeesTypes.seen), f"training: {last}, checks: {first}"


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
@pytest.mark.parametrize("env", slow_after(1, MUJOCO, "1 s per task"))
def test_mujoco_raises_no_alarm(env: str, backend: str) -> None:
    assert check(env=env, env_backend=backend) == Finding(200)


@pytest.mark.slow(reason="about 5 s")
def test_the_check_raises_no_alarm_for_minigrid() -> None:
    pytest.importorskip("minigrid")
    for name in ("Empty-5x5", "MemoryS9", "DoorKey-6x6"):
        env = f"minigrid:MiniGrid-{name}-v0"
        assert check(1000, env=env, wrappers=("minigrid.wrappers:ImgObsWrapper",)) == Finding(1000)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7])
def test_few_steps_are_possible(steps: int) -> None:
    assert check(steps, env="CartPole-v1") == Finding(steps)


def test_a_run_draws_no_number_of_the_check() -> None:
    config = TrainConfig(workers=0)
    request = make_request(config, inspect_task(config), 10, alone=True)
    assert request.config.seed != config.seed
    assert request == make_request(config, request.task, 10, alone=True)
