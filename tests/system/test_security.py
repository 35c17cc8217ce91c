"""The promises of docs/guides/security.md: what a run directory of others can import, and what a run calls.

Private modules are imported in functions, so that older versions can run the other tests.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environments import Counter
from public_helpers import exit_code, refused, slow_after, train_in

import shmppo.evaluate
import shmppo.export
import shmppo.replay
from shmppo import ConfigError, TrainConfig, load_policy, resume, train
from shmppo.config import trust
from shmppo.train import main as train_main

MODULE = """
import environments
import networks
open({marker!r}, "a").close()
class Own(environments.Counter):
    pass
class Network(networks.Plain):
    pass
"""
OWN = TrainConfig(
    env="own_counter:Own", num_envs=2, rollout_steps=8, minibatches=1, hidden_size=8, workers=0, quiet=True,
    stop_at_iteration=1, total_steps=64,
)  # fmt: skip


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module `own_counter` makes when it is imported. The module can be imported, but has not been."""
    path = tmp_path / "imported"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "own_counter.py").write_text(MODULE.format(marker=str(path)))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "own_counter", raising=False)
    return path


@pytest.fixture
def own(tmp_path: Path, marker: Path) -> Path:
    """A run. Its module is not imported any more."""
    path = tmp_path / "run"
    train_in(path, OWN)
    content = {"config": OWN.to_json(), "env_index": 0, "episode": 0, "iteration": 1, "failed_iteration": 1, "seed": 0}
    content |= {"actions": [[0.0]], "message": ""}
    (path / "failed_episode.json").write_text(json.dumps(content))
    forget(marker)
    return path


def forget(marker: Path) -> None:
    marker.unlink(missing_ok=True)
    sys.modules.pop("own_counter", None)
    trust._named.clear()  # as in another process


def fork(run_dir: Path, **options: Any) -> None:
    resume(run_dir, new_run_dir=f"{run_dir}-fork", total_steps=48, **options)


def evaluate(run_dir: Path, **options: Any) -> Any:
    from shmppo.policies.evaluation import evaluate

    return evaluate(run_dir, episodes=1, max_steps=5, **options)


def replay(run_dir: Path, **options: Any) -> None:
    from shmppo.runs.failed_episode import replay

    replay(run_dir / "failed_episode.json", **options)


def replay_of_training(run_dir: Path, **options: Any) -> None:
    from shmppo.tools.replay_episodes import replay_episodes

    replay_episodes(run_dir, ["best:1"], run_dir / "episodes", **options)


def export(run_dir: Path, **options: Any) -> None:
    from shmppo.tools.export import export

    export(run_dir, format="torchscript", **options)


def teacher(run_dir: Path, **options: Any) -> None:
    train(dataclasses.replace(OWN, env="environments:Counter", teacher=run_dir, run_dir=f"{run_dir}-new"), **options)


USES: dict[str, Callable[..., Any]] = {
    "evaluate": evaluate,
    "resume": functools.partial(resume, total_steps=48),
    "fork": fork,
    "replay": replay,
    "replay of training": replay_of_training,
}
WITHOUT_ENVIRONMENT: dict[str, Callable[..., Any]] = {"load_policy": load_policy, "teacher": teacher, "export": export}


@pytest.mark.parametrize("use", slow_after(4, USES, "1 s per use"))
def test_a_run_imports_only_code_that_is_trusted(use: str, own: Path, marker: Path) -> None:
    with refused(r"names code to import: --env own_counter:Own; .* add --trust own_counter"):
        USES[use](own)
    with pytest.raises(ConfigError, match="own_counter:Own"):
        USES[use](own, trust=["own", "counter"])
    assert not marker.exists()
    assert "own_counter" not in sys.modules
    USES[use](own, trust="own_counter")
    assert marker.exists()


@pytest.mark.parametrize("use", WITHOUT_ENVIRONMENT)
def test_a_policy_imports_only_its_network_and_only_if_it_is_trusted(use: str, own: Path, marker: Path) -> None:
    WITHOUT_ENVIRONMENT[use](own)  # it knows its spaces
    assert "own_counter" not in sys.modules
    other = Path(f"{own}-other")
    train(dataclasses.replace(OWN, network="own_counter:Network", core="none", run_dir=str(other)))
    forget(marker)
    with refused(r"names code to import: --network own_counter:Network; .* add --trust own_counter "):
        WITHOUT_ENVIRONMENT[use](other)
    assert not marker.exists()
    WITHOUT_ENVIRONMENT[use](other, trust="own_counter")


COMMANDS: dict[str, tuple[Callable[[], int], str]] = {
    "evaluate": (shmppo.evaluate.main, "RUN_DIR"),
    "replay": (shmppo.replay.main, "RUN_DIR/failed_episode.json"),
    "resume": (train_main, "--resume RUN_DIR --total-steps 48"),
    "init-from": (train_main, "--init-from RUN_DIR"),
    "config": (train_main, "--config RUN_DIR/config.json"),
}


@pytest.mark.parametrize("name", slow_after(4, COMMANDS, "1 s per command"))
def test_a_command_refuses_code_that_is_not_trusted_in_one_line(
    name: str, own: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, arguments = COMMANDS[name]
    words = [word.replace("RUN_DIR", str(own)) for word in arguments.split()]
    assert exit_code(main, words) == 2
    assert not marker.exists()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "add --trust own_counter " in lines[0]


@pytest.mark.parametrize("use", WITHOUT_ENVIRONMENT)
def test_a_checkpoint_that_hides_its_spaces_imports_no_environment(use: str, own: Path, marker: Path) -> None:
    from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint

    for path in own.glob("checkpoint*.pt"):
        write_checkpoint(path, load_checkpoint(path) | {"spaces": "null"})
    with refused(r"names code to import: --env own_counter:Own; .* add --trust own_counter"):
        WITHOUT_ENVIRONMENT[use](own)
    assert not marker.exists()


def test_an_edited_checkpoint_imports_nothing(own: Path, marker: Path) -> None:
    from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint

    for path in own.glob("checkpoint*.pt"):
        state = load_checkpoint(path)
        state["config"] = json.dumps(
            json.loads(state["config"]) | {"env": "os:system", "env_kwargs": {"command": "id"}}
        )
        write_checkpoint(path, state)
    with pytest.raises(ConfigError, match=r"names code to import: --env os:system; .* add --trust os "):
        evaluate(own)
    with pytest.raises(ConfigError, match="--env os:system is neither a class nor a Python function, but a builtin"):
        evaluate(own, trust=["os"])
    assert not marker.exists()


def test_a_checkpoint_cannot_contain_code(tmp_path: Path) -> None:
    from shmppo.storage.checkpoint_file import write_checkpoint

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    write_checkpoint(tmp_path / "checkpoint.pt", {"config": Attack()})
    with pytest.raises(ConfigError, match="is damaged or not a checkpoint"):
        load_policy(tmp_path)
    assert not (tmp_path / "attacked").exists()


# --- what is called


NIM = {"env": "agent_environments:Nim", "action_masks": True, "self_play": ["one"], "eval_every": 1}
CALLS: list[tuple[dict[str, Any], str]] = [
    ({"env": "sys:exit"}, "neither a class nor a Python function, but a builtin_function_or_method"),
    ({"env": "os:system", "env_kwargs": {"command": "touch MARKER"}}, "neither a class nor a Python function"),
    ({"env": "builtins:eval"}, "neither a class nor a Python function"),
    ({"env": "pathlib:Path"}, r"is a class, but not a subclass of gymnasium's Env; name such a class, or"),
    ({"env": "io:FileIO", "env_kwargs": {"file": "MARKER", "mode": "w"}}, "is a class, but not a subclass"),
    ({"env": "test_security:PARTIAL"}, "neither a class nor a Python function"),
    ({"env": "test_security:CALLABLE"}, "neither a class nor a Python function, but a NotAFunction"),
    ({"env": "gymnasium.vector:SyncVectorEnv"}, "is a class, but not a subclass of gymnasium's Env"),
    ({"env": "environments:Counter", "env_backend": "vector"}, r"not a subclass of gymnasium's VectorEnv"),
    ({"env": "test_security:number"}, "returned int, which is no gymnasium.Env"),
    ({"env": "CartPole-v1", "wrappers": ("os:system",)}, "--wrappers os:system is neither a class nor"),
    ({"env": "CartPole-v1", "wrappers": ("builtins:print",)}, "--wrappers builtins:print is neither a class nor"),
    ({"env": "CartPole-v1", "wrappers": ("pathlib:Path",)}, "--wrappers pathlib:Path is a class, but not"),
    ({"env": "CartPole-v1", "wrappers": ("vector",)}, "--wrappers gymnasium.wrappers:vector is neither a class nor"),
    ({"auxiliary": "os:system"}, "--auxiliary os:system is neither a class nor a Python function"),
    ({"env_schedule": "builtins:eval"}, "--env-schedule builtins:eval is neither a class nor a Python function"),
    (NIM | {"eval_opponent": "os:system"}, "--eval-opponent os:system is neither a class nor a Python function"),
]


class NotAFunction:
    possible_agents = ()

    def __call__(self) -> None:
        raise AssertionError


PARTIAL, CALLABLE = functools.partial(functools.partial(os.system), "false"), NotAFunction()


def number() -> int:
    return 3


@pytest.mark.parametrize(("fields", "message"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_makes_no_environment_is_not_called(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = str(tmp_path / "called")
    given = json.loads(json.dumps(fields).replace("MARKER", path))
    try:
        with refused(message):
            train(TrainConfig(**given, workers=0, quiet=True, stop_at_iteration=1, run_dir=str(tmp_path / "run")))
    finally:
        assert not Path(path).exists()


def test_functions_and_partials_of_them_are_called(tmp_path: Path) -> None:
    for name in ("counter", "PARTIAL_COUNTER", "method"):
        assert train_in(tmp_path / name, OWN, env=f"test_security:{name}")["iterations"] == 1


def counter(length: int = 5) -> Any:
    return Counter(length)


class Factory:
    def make(self) -> Any:
        return counter()


PARTIAL_COUNTER, method = functools.partial(counter, length=3), Factory().make


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "test_security:CALLABLE"])
def test_a_network_is_made_by_a_class_or_function(name: str, tmp_path: Path) -> None:
    with refused(f"^--network {name} is neither a class nor a Python function"):
        train_in(tmp_path / "run", OWN, env="CartPole-v1", network=name)


@pytest.mark.parametrize("workers", slow_after(1, [0, 2], "4 s"))
@pytest.mark.parametrize("when", ["step", "reset"])
def test_an_environment_that_exits_ends_the_run_with_an_error(
    when: str, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        f"--env test_security:Exits --env-kwargs when={when} --num-envs 2 --rollout-steps 16 --minibatches 1 --quiet "
        f"--workers {workers} --stop-at-iteration 3 --hidden-size 8 --run-dir {tmp_path / 'run'}"
    )
    assert exit_code(train_main, words.split()) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(rf"{when}.* raised SystemExit\(0\)", error), f"the message is: {error}"
    assert (tmp_path / "run" / "failed_episode.json").exists()


class Exits(Counter):
    """Calls sys.exit(0) in its tenth step, or in its third reset."""

    def __init__(self, when: str) -> None:
        super().__init__(4)
        self.when, self.steps, self.resets = when, 0, 0

    def reset(self, **options: Any) -> Any:
        self.resets += 1
        if self.when == "reset" and self.resets == 3:
            sys.exit(0)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.when == "step" and self.steps == 10:
            sys.exit(0)
        return super().step(action)
