"""Environments that cannot be created: each message names the cause and what to correct."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
from vector_environments import Walk

from shmppo.config.train_config import TrainConfig
from shmppo.envs.inspection import inspect_task
from shmppo.errors import ConfigError

MESSAGES = {
    "environments:Countre": r"is not registered \(.* Did you mean: `Counter`\?\); check the name in environments$",
    "environment:Counter": "there is no module environment; install it, or run in the directory",
    "./environments.py:Counter": "is not of the form module:attribute; name the module and run in the",
    ".environments:Counter": "name the module and run in the directory that contains it",
    ".:Counter": "name the module and run in the directory that contains it",
    "json.nothing:make": "there is no module json.nothing; install it",
    "environments:np": "is neither a class nor a Python function, but a module; name one of them",
    "environments:Nothing-v7": r"is not registered \(.*\); check the name in environments$",
    "sys:exit": "is neither a class nor a Python function, but a builtin_function_or_method; name one of them",
    "nothing.Maze": r"is not registered \(.*\); for a class, a factory, or an id of a module, use --env module:Name$",
    "ALE/Pong-v5": r"is not registered.*; for a class, a factory, or an id of a module, use --env module:Name$",
    "CartPol-v1": r"is not registered \(.* Did you mean: `CartPole`\?\); for a class, a factory, or an id of a module",
    "CartPole-v9": r"is not registered \(.* provides versioned environments: \[ `v0`, `v1` \]\); for",
    "LunarLander-v2": "could not be made: .* deprecated. Please use `LunarLander-v3` instead$",
}


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("name", MESSAGES)
def test_a_wrong_name_gets_a_suggestion(name: str) -> None:
    with pytest.raises(ConfigError, match=MESSAGES[name]) as raised:
        inspect_task(TrainConfig(env=name))
    assert str(raised.value).startswith(f"--env {name}")
    assert "\n" not in str(raised.value)
    assert raised.value.details == "", "no traceback"


ARGUMENTS = [
    (
        "environments:Counter",
        {"size": 1},
        r"unexpected keyword argument 'size'.*; it was given the arguments {'size': 1}$",
    ),
    ("faulty_environments:Faulty", {}, r"missing 1 required .* 'how'"),
    ("CartPole-v1", {"sise": 1}, r"unexpected keyword argument 'sise'.*; it was given the arguments {'sise': 1}$"),
    ("space_environments:Shaped", {"space": []}, r"TypeError\(.* at .*environments.py:\d+; it was given the arguments"),
]


@pytest.mark.parametrize(("env", "arguments", "message"), ARGUMENTS)
def test_wrong_arguments_of_the_constructor_are_named(env: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inspect_task(TrainConfig(env=env, env_kwargs=arguments))


@pytest.mark.parametrize(
    ("backend", "make"), [("auto", lambda: gymnasium.make("CartPole-v1")), ("vector", lambda num_envs: Walk(num_envs))]
)
def test_a_factory_of_a_notebook_is_refused_with_workers(
    backend: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = ModuleType("__main__")
    notebook.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(ConfigError, match=r"__main__:make is defined in a notebook .*, or use --workers 0$"):
        inspect_task(TrainConfig(env="__main__:make", env_backend=backend, workers=2))


def test_an_error_while_a_module_is_imported_shows_the_users_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_maze").mkdir()
    (tmp_path / "broken_maze" / "__init__.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"the import of broken_maze raised ModuleNotFoundError") as raised:
        inspect_task(TrainConfig(env="broken_maze:Maze"))
    assert "__init__.py:1; correct the module" in str(raised.value)
    assert [line for line in raised.value.details.splitlines() if "File" in line] == [
        f'  File "{tmp_path}/broken_maze/__init__.py", line 1, in <module>'
    ]
