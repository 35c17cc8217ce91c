"""Environments made by id or by factory, with arguments and wrappers. Others are refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import tyro
from public_helpers import refused, slow_after

from shmppo.config.plugins import parse_call
from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import train


def test_an_environment_by_id_and_by_factory_with_arguments() -> None:
    for name in ("environments:Counter-v0", "environments:Counter"):
        env: Any = make_environment(TrainConfig(env=name, env_kwargs={"length": 3}))
        env.reset(seed=1)
        ends = [env.step(0)[2] for _ in range(3)]
        assert (env.unwrapped.length, ends) == (3, [False, False, True])


def test_wrappers_are_applied_in_order() -> None:
    wrappers = ("TimeLimit(max_episode_steps=2)", "gymnasium.wrappers:RescaleObservation(min_obs=0, max_obs=1)")
    env = make_environment(TrainConfig(env="MountainCar-v0", wrappers=wrappers))
    assert isinstance(env, gymnasium.wrappers.RescaleObservation)
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)
    env.reset(seed=1)
    assert [env.step(1)[3] for _ in range(2)] == [False, True]


def test_wrapper_calls_are_parsed() -> None:
    assert parse_call("Name", "x") == ("Name", {})
    assert parse_call("a.b:Name(n=4, s='(x', t=(1, 2))", "x") == ("a.b:Name", {"n": 4, "s": "(x", "t": (1, 2)})
    for wrong in ("Name(4)", "Name(a=f())", "Name(a=1", "Name(a=1).b"):
        with pytest.raises(ConfigError, match=r"--wrappers .* is not of the form Name or Name\(argument=value\)"):
            parse_call(wrong, "--wrappers")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"env": "space_environments:Echo-v0", "env_kwargs": {"actions": "box"}, "distribution": "beta"},
     r"^--env space_environments:Echo-v0 has Box actions with the bounds -inf … inf in dimension 1, but --dist"),
    ({"env": "FrozenLake-v1", "hide_obs": (0,)}, r"--hide-obs needs an observation that is one vector, and that of Fr"),
    ({"env": "gymnasium:Env"},
     "^--env gymnasium:Env has no observation_space; set it in __init__ or as a class attribute$"),
    ({"env": "gymnasium:Env", "prev_action": True}, "--env gymnasium:Env has no observation_space; set it"),
    ({"env": "environments:NoActions"}, "--env environments:NoActions has no action_space; set it"),
    (
        {"env": "CartPole-v1", "wrappers": ("TimeLimit",)},
        r"^--env CartPole-v1 could not be made: TypeError\(.TimeLimit.* missing .* 'max_episode_steps'",
    ),
    (
        {"env": "CartPole-v1", "wrappers": ("environments:BrokenWrapper",)},
        r"^--env CartPole-v1 could not be made: TypeError\('not an argument'\) at .*environments.py:\d+$",
    ),
    ({"env": "agent_environments:MultiAgentEnv"},
     r"^--env agent_environments:MultiAgentEnv has several agents \(possible_agents\); give an environment"),
    ({"env": "CartPole-v1", "wrappers": ("Nothing",)}, r"--wrappers gymnasium.wrappers:Nothing: .* has no Nothing"),
    ({"env": "CartPole-v1", "wrappers": ("json:Nothing",)}, r"--wrappers json:Nothing: module json has no Nothing"),
    ({"env": "CartPole-v1", "wrappers": ("nowhere:W",)}, r"--wrappers nowhere:W: there is no module nowhere; install"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_an_environment_that_cannot_be_made_is_refused_in_a_sentence(fields: dict[str, Any], message: str) -> None:
    with refused(message):
        inspect_task(TrainConfig(**fields))


def needs_box2d() -> None:
    raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, you can install it by …\nmore")


gymnasium.register("NeedsBox2D-v0", entry_point=needs_box2d)


def test_gymnasiums_own_advice_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"^--env NeedsBox2D-v0 could not be made: Box2D is not .* install it by …$"):
        inspect_task(TrainConfig(env="NeedsBox2D-v0"))


@pytest.mark.slow(reason="13 s")
@pytest.mark.parametrize("source", slow_after(1, ["raise ImportError('broken')", ""], "13 s"))
def test_a_broken_mujoco_does_not_end_other_tasks(
    source: str, run_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """metaworld leaves such a package. An import of it fails, or it has no members."""
    (tmp_path / "mujoco.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    small = ("--num-envs", 4, "--rollout-steps", 16, "--minibatches", 2, "--stop-at-iteration", 1, "--run-dir")
    result = run_command("shmppo.train", "--env", "CartPole-v1", "--workers", 1, *small, tmp_path / "run")
    assert result.returncode == 0, result.stderr
    result = run_command("shmppo.train", "--env", "HalfCheetah-v5", *small, tmp_path / "other")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: --env HalfCheetah-v5 could not be made: ")


def test_arguments_from_the_command_line_and_from_a_file() -> None:
    pairs = ["a=1", "b=false", "c=text", "d=[1,2]", 'e={"x": null}', "f="]
    config = tyro.cli(TrainConfig, args=["--env", "CartPole-v1", "--env-kwargs", *pairs])
    assert config.env_kwargs == {"a": 1, "b": False, "c": "text", "d": [1, 2], "e": {"x": None}, "f": ""}
    again = TrainConfig(**json.loads(json.dumps(config.to_json())))
    assert again.env_kwargs == config.env_kwargs
    for given in ("4", "size", "a-b=c"):
        with pytest.raises(ConfigError) as raised:
            tyro.cli(TrainConfig, args=["--env-kwargs", given])
        assert str(raised.value) == f"{given} is not of the form KEY=VALUE; write it like frame_skip=4"
    for value in ((1, 2), object()):
        with pytest.raises(ConfigError, match=r"--env-kwargs is .*; its values must be finite numbers, text, lists"):
            dataclasses.replace(config, env_kwargs={"a": value})


def test_workers_make_the_environment_with_its_arguments_and_wrappers(tmp_path: Path) -> None:
    config = TrainConfig(
        env="environments:Counter", env_kwargs={"length": 5, "truncate": True}, num_envs=4, rollout_steps=32,
        wrappers=("TimeLimit(max_episode_steps=4)",), minibatches=2, hidden_size=8, stop_at_iteration=1, workers=2,
        quiet=True, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert train(config)["return_mean_100"] == 4
    assert evaluate(tmp_path / "run", episodes=2).returns == [4, 4]


@pytest.mark.parametrize(("initial", "minimum"), [(-6.0, None), (2.0, None), (-2.0, -2.0)])
def test_a_standard_deviation_of_the_state_must_begin_within_its_limits(initial: float, minimum: float | None) -> None:
    config = TrainConfig(env="Pendulum-v1", hide_obs=(), std="state", log_std_init=initial, log_std_min=minimum)
    with pytest.raises(
        ConfigError, match=rf"^--log-std-init is {initial}; it must lie between .*limits of --std state$"
    ):
        inspect_task(config)


def test_a_factory_that_asks_for_it_gets_the_number_of_its_environment(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = TrainConfig(
        env="environments:Numbered", env_kwargs={"log": str(log)}, num_envs=4, rollout_steps=8, minibatches=1,
        total_steps=64, workers=2, quiet=True, hidden_size=8, check_determinism=0, run_dir=str(tmp_path / "run"),
        eval_every=1, eval_episodes=3,
    )  # fmt: skip
    summary = train(config)
    assert sorted(map(int, log.read_text().split())) == [-1, 0, 1, 2, 3, 4, 5, 6]
    assert "env_index" not in summary["config"]["env_kwargs"]
