"""The code that configurations name, and the flag --trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import make_run_directory, parse_config

from shmppo import train
from shmppo.config.flags import parse_resume
from shmppo.config.presets import PRESETS
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import check_trust, named_code, resume_command
from shmppo.errors import ConfigError

NAMES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"env": "ALE/Pong-v5", "wrappers": ("TimeLimit(max_episode_steps=5)",)}, []),
    ({"env": "os:system"}, ["--env os:system"]),
    ({"env": "a:b:c"}, ["--env a:b:c"]),
    ({"wrappers": ("a.b:C(x='d:e')", "shmppo.envs.wrappers:RepeatAction(steps=2)")}, ["--wrappers a.b:C"]),
    ({"wrappers": ("shmppo.cli:main",)}, ["--wrappers shmppo.cli:main"]),
    ({"network": "nets:make"}, ["--network nets:make"]),
    ({"network": "nets"}, ["--network nets"]),
    ({"encoder": "nets:encoder"}, ["--encoder nets:encoder"]),
    ({"encoder": "impala"}, []),
    ({"auxiliary": "nets:make"}, ["--auxiliary nets:make"]),
    ({"env_schedule": "levels:by_iteration"}, ["--env-schedule levels:by_iteration"]),
    ({"env_kwargs": {"id": "m:X", "n": [1, {"k": "a.b:c"}]}}, ["--env-kwargs m:X", "--env-kwargs a.b:c"]),
    ({"eval_env_kwargs": {"id": "m:X"}, "eval_every": 1}, ["--eval-env-kwargs m:X"]),
    ({"eval_opponent": "players:best", "self_play": ()}, ["--eval-opponent players:best"]),
    ({"env_kwargs": {"a": "https://x", "b": "C:\\x", "c": "12:30", "d": "x"}}, []),
]


@pytest.mark.parametrize(("fields", "names"), NAMES)
def test_the_code_that_a_configuration_names(fields: dict[str, Any], names: list[str]) -> None:
    assert list(map(str, named_code(TrainConfig(**fields).to_json()))) == names


def test_a_trusted_module_includes_the_modules_below_it() -> None:
    fields = {"env": "mazes.small:Maze", "network": "nets:make"}
    for given in (("mazes", "nets"), ["mazes.small", "nets"]):
        check_trust(fields, Path("run"), given)
    check_trust({"network": "nets:make"}, Path("run"), "nets")
    check_trust(fields, Path("run"), ["mazes, nets"])
    with pytest.raises(ConfigError) as raised:
        check_trust(fields, Path("run"), ("maze", "mazes.smal", "nets.x"))
    assert str(raised.value) == (
        "run names code to import: --env mazes.small:Maze, --network nets:make; if you trust it, add "
        "--trust mazes.small --trust nets (in Python: trust=['maze', 'mazes.smal', 'mazes.small', 'nets', 'nets.x']), "
        "or for all commands: export SHMPPO_TRUST=mazes.small,nets"
    )


def test_modules_can_be_trusted_in_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"env": "mazes.small:Maze", "network": "nets:make"}
    monkeypatch.setenv("SHMPPO_TRUST", "mazes, other")
    with pytest.raises(ConfigError, match=r"code to import: --network nets:make; .* SHMPPO_TRUST=mazes,nets,other$"):
        check_trust(fields, Path("run"), ())
    monkeypatch.setenv("SHMPPO_TRUST", "nets,mazes,")
    check_trust(fields, Path("run"), ())


def test_a_process_trusts_what_its_own_configurations_name(tmp_path: Path) -> None:
    fields = {"env": "mazes.small:Maze", "env_kwargs": {"a": "os:x"}}
    with pytest.raises(ConfigError, match="names code to import"):
        check_trust(fields, Path("run"), ())
    with pytest.raises(ConfigError, match="there is no module mazes"):
        train(TrainConfig(**fields, run_dir=str(tmp_path)))
    check_trust({"env": "mazes.small:Maze"}, Path("run"), ())
    with pytest.raises(ConfigError, match="names code to import: --env-kwargs os:x; "):
        check_trust(fields, Path("run"), ())


@pytest.mark.parametrize("option", ["--config", "--init-from"])
def test_the_configuration_of_a_run_may_not_name_code_that_is_not_trusted(option: str, tmp_path: Path) -> None:
    path = make_run_directory(TrainConfig(env="mazes:Maze", network="nets:make", run_dir=str(tmp_path / "run")))
    given = [option, str(path / "config.json" if option == "--config" else path)]
    with pytest.raises(ConfigError, match=r"--env mazes:Maze, --network nets:make; .* --trust mazes --trust nets "):
        parse_config(given)
    assert parse_config([*given, "--trust", "nets", "--trust=mazes"]).env == "mazes:Maze"
    with pytest.raises(ConfigError, match=r"names code to import: --network nets:make; .* add --trust nets "):
        parse_config([*given, "--env", "own:Env"])
    assert parse_config([*given, "--env", "own:Env", "--network", "own:make"]).env == "own:Env"
    assert parse_config([*given, "--env", "nets:Env"]).network == "nets:make", "the command line names its module"


def test_a_file_of_flags_is_not_trusted_either(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"env": "own:Env", "env-kwargs": {"a": "own:x"}}))
    with pytest.raises(ConfigError, match="--env own:Env, --env-kwargs own:x; "):
        parse_config(["--config", str(tmp_path / "config.json")])
    assert parse_config(["--config", str(tmp_path / "config.json"), "--trust", "own"]).env == "own:Env"
    with pytest.raises(ConfigError, match="--env own:Env, --env-kwargs own:x; "):
        parse_config(["--init-from", str(tmp_path)])
    with pytest.raises(ConfigError, match=r"names code to import: --env-kwargs own:x; "):
        parse_config(["--init-from", str(tmp_path), "--env", "other:Env"])
    with pytest.raises(ConfigError, match=r"names code to import: --env own:Env, --env-kwargs own:x; "):
        parse_config(["--init-from", str(tmp_path), "--env-kwargs", "b=2"])
    with pytest.raises(ConfigError, match=r"names code to import: --env own:Env; "):
        parse_config(["--init-from", str(tmp_path), "--env-kwargs", "a=2"])
    assert parse_config(["--init-from", str(tmp_path), "--env", "other:Env", "--env-kwargs", "b=2"]).env == "other:Env"


def test_a_resumed_run_takes_arguments_of_its_evaluations() -> None:
    _, arguments = parse_resume(["--resume", "run", "--eval-env-kwargs", "size=3", "name=x"])
    assert arguments["eval_env_kwargs"] == {"size": 3, "name": "x"}


@pytest.mark.parametrize(("ranks", "expected"), [("1", "runs/rank-loss"), ("2", "runs")])
def test_only_with_several_ranks_the_command_names_the_directory_above(
    ranks: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert resume_command(Path("runs/rank-loss")).endswith(f"--resume {expected}")


def test_presets_name_only_code_of_these_packages() -> None:
    packages = {name.module.partition(".")[0] for fields in PRESETS.values() for name in named_code(fields)}
    assert packages == {"ale_py", "minigrid", "pettingzoo", "popgym", "pybullet_envs_gymnasium"}


def test_the_message_shows_control_characters_of_a_name() -> None:
    with pytest.raises(ConfigError, match=r"--env a\\x1b\[2K:b; if you trust it, add --trust a\\x1b\[2K "):
        check_trust({"env": "a\x1b[2K:b"}, Path("run"), ())


def test_the_command_of_a_run_of_a_script_names_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for env, expected in {
        "__main__:Mine": 'shmppo.resume("run", trust="__main__") in ',
        "mine:Mine": "shmppo.train --resume run --trust mine",
    }.items():
        (tmp_path / "run" / "config.json").write_text(json.dumps({"config": {"env": env}}))
        assert expected in resume_command(tmp_path / "run")
