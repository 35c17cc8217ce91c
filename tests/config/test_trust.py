"""The code that configurations name, signatures of it, and the flag --trust."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from helpers import make_run_directory

from shmppo.config.flags import parse_config, parse_resume
from shmppo.config.presets import PRESETS
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import CODE_FIELDS, Trust, named_code, sign
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
    ({"env_schedule": "levels:by_iteration"}, ["--env-schedule levels:by_iteration"]),
    ({"env_kwargs": {"id": "m:X", "n": [1, {"k": "a.b:c"}]}}, ["--env-kwargs m:X", "--env-kwargs a.b:c"]),
    ({"env_kwargs": {"a": "https://x", "b": "C:\\x", "c": "12:30", "d": "x"}}, []),
    ({"env": "a\x1b[2K:b"}, ["--env 'a\\x1b[2K:b'"]),
]


@pytest.mark.parametrize(("fields", "names"), NAMES)
def test_the_code_that_a_configuration_names(fields: dict[str, Any], names: list[str]) -> None:
    assert list(map(str, named_code(TrainConfig(**fields).to_json()))) == names


def test_each_field_that_names_code_is_signed_and_no_other(tmp_path: Path) -> None:
    config = TrainConfig(run_dir=str(tmp_path / "run"), env="a:b", network="n:m", wrappers=("w:W",))
    path = make_run_directory(config)
    fields = json.loads((path / "config.json").read_text())["config"]
    moved = path.rename(tmp_path / "moved")
    Trust().check(fields, moved, [moved])
    Trust().check(fields | {"gamma": 0.5, "run_dir": "x"}, moved, [moved])
    edits = {"env": "a:c", "env_kwargs": {"x": 1}, "env_backend": "vector", "wrappers": ["w:W(x=1)"], "network": "n:n"}
    edits["env_schedule"] = "s:s"
    assert edits.keys() == set(CODE_FIELDS)
    for name, value in edits.items():
        with pytest.raises(ConfigError, match="was not made by this user on this machine, or was edited"):
            Trust().check(fields | {name: value}, moved, [moved])
    Trust().check(fields | {"env": "CartPole-v1", "network": None, "wrappers": []}, moved, [])


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"signature": 3}', "\udcff", "[" * 10_000])
def test_a_damaged_file_is_not_signed(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="add --trust a "):
        Trust().check({"env": "a:b"}, tmp_path, [tmp_path])


def test_a_trusted_module_includes_the_modules_below_it() -> None:
    fields = {"env": "mazes.small:Maze", "network": "nets:make"}
    for given in (("mazes", "nets"), ["mazes.small", "nets"], Trust(("nets", "mazes"))):
        Trust.of(given).check(fields, Path("run"), [])
    Trust.of("nets").check({"network": "nets:make"}, Path("run"), [])
    with pytest.raises(ConfigError) as raised:
        Trust(("maze", "mazes.smal", "nets.x")).check(fields, Path("run"), [])
    assert str(raised.value) == (
        "run was not made by this user on this machine, or was edited, and it names code to import: --env "
        "mazes.small:Maze, --network nets:make; if you trust this code, add --trust mazes.small --trust nets (in "
        "Python: trust=['mazes.small', 'nets'])"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ANSWERS = [("y\n", True), ("YES\n", True), ("\n", False), ("no\n", False), ("", False)]


@pytest.mark.parametrize(("answer", "allowed"), ANSWERS)
def test_a_command_on_a_terminal_asks(answer: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stdout", output)
    check = {"fields": {"env": "mazes:Maze"}, "source": Path("run"), "directories": []}
    if allowed:
        Trust(ask=True).check(**check)  # type: ignore[arg-type]
    else:
        with pytest.raises(ConfigError, match="add --trust mazes "):
            Trust(ask=True).check(**check)  # type: ignore[arg-type]
    assert "--env mazes:Maze" in output.getvalue()
    for no_question in (Trust(), Trust(ask=True)):
        if no_question.ask:
            monkeypatch.setenv("RANK", "0")
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
        with pytest.raises(ConfigError, match="add --trust mazes "):
            no_question.check(**check)  # type: ignore[arg-type]


def test_without_a_terminal_a_command_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin, stdout in ((io.StringIO("y\n"), Terminal()), (Terminal("y\n"), io.StringIO()), (None, Terminal())):
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(ConfigError, match="add --trust mazes "):
            Trust(ask=True).check({"env": "mazes:Maze"}, Path("run"), [])


def test_a_run_without_a_key_is_not_signed_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        path = make_run_directory(TrainConfig(run_dir=str(tmp_path / "run")))
    assert json.loads((path / "config.json").read_text())["signature"] is None
    assert caplog.text.count("this run directory is not signed") == 1
    assert sign({}) is None


@pytest.mark.parametrize("option", ["--config", "--init-from"])
def test_the_configuration_of_a_run_of_another_user_may_not_name_code(option: str, tmp_path: Path) -> None:
    path = make_run_directory(TrainConfig(env="mazes:Maze", network="nets:make", run_dir=str(tmp_path / "run")))
    given = [option, str(path / "config.json" if option == "--config" else path)]
    assert parse_config(given).env == "mazes:Maze"
    edit(path)
    with pytest.raises(ConfigError, match=r"--env mazes:Maze, --network nets:make; .* --trust mazes --trust nets "):
        parse_config(given)
    assert parse_config([*given, "--trust", "nets", "--trust=mazes"]).env == "mazes:Maze"
    with pytest.raises(ConfigError, match=r"names code to import: --network nets:make; .* add --trust nets "):
        parse_config([*given, "--env", "own:Env"])
    assert parse_config([*given, "--env", "own:Env", "--network", "own:make"]).env == "own:Env"


def edit(path: Path, signature: str | None = None, **fields: Any) -> None:
    content = json.loads((path / "config.json").read_text())
    content["config"] |= fields
    (path / "config.json").write_text(json.dumps(content | {"signature": signature}))


def test_a_file_of_flags_is_trusted_but_not_one_beside_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"env": "own:Env", "env-kwargs": {"a": "own:x"}}))
    assert parse_config(["--config", str(tmp_path / "config.json")]).env == "own:Env"
    with pytest.raises(ConfigError, match="--env own:Env, --env-kwargs own:x; "):
        parse_config(["--init-from", str(tmp_path)])


def test_the_flag_names_one_module_and_can_be_repeated() -> None:
    _, arguments = parse_resume(["--trust", "a", "--resume", "run", "--trust=b.c"])
    assert arguments["trust"] == Trust(("a", "b.c"), ask=True)


def test_presets_name_only_packages_that_register_environments() -> None:

    modules = {name.module for fields in PRESETS.values() for name in named_code(fields)}
    assert modules <= {"minigrid", "minigrid.wrappers", "ale_py", "popgym"}
