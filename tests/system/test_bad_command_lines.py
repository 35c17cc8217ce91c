"""Command lines that no run can use: exit code 2, a message, and no traceback.

About 300 of them are generated from the flags of all commands. Others have unusable values or environments.
"""

from __future__ import annotations

import importlib
import itertools
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from public_helpers import exit_code

from docs.generate import option_types
from shmppo import cli
from shmppo.config.command_line import Flag, flags_of
from shmppo.config.hints import EXPLAINED, RENAMED

OPTIONS = option_types()
FOREIGN = list(itertools.chain(*RENAMED.values(), *EXPLAINED.values()))
OUT_OF_RANGE = (
    "num-envs 0", "total-steps -5", "seed -1", "seed 99999999999999999999", "gamma 1.5", "gamma nan", "gae-lambda -0.1",
    "learning-rate 0", "learning-rate inf", "clip -1", "epochs 0", "minibatches 0", "rollout-steps 0", "seq-len 0",
    "hidden-size 0", "hidden-size 99999999", "num-layers 0", "encoder-sizes 64 0", "workers -1",
    "grad-shards 0", "target-kl 0", "desired-kl 0", "value-coef -1",
    "entropy-coef nan", "anneal-steps 0", "adam-eps 0", "max-grad-norm 0",
    "worker-timeout 0", "worker-timeout nan", "eval-every 0", "eval-episodes 0", "keep-every 0",
    "checkpoint-every 0", "kl-profile-every 0", "check-determinism -1", "preempt-fraction 1.5", "log-std-init 99",
    "log-std-min 5", "device tpu", "clip-reward 0", "stop-at-iteration 0", "hide-obs 99", "run-dir=", "env :foo",
    "env-kwargs a", "env-kwargs a=NaN", "env-kwargs =1", "env NoSuchEnv-v0", "env no_such_module:Env",
    "config none.yaml", "preset NoSuch", "init-from none", "resume none", "wrappers NoSuchWrapper",
    "wrappers TimeLimit(", "network nothing:make", "network x", "env-schedule nothing:f", "actor-obs nothing",
    "teacher-coef -1", "teacher-steps 0", "critic-warmup-steps -1", "teacher none",
)  # fmt: skip
COMBINATIONS = (
    "--workers 32 --num-envs 16", "--learning sharded --workers 0", "--learning sharded --device cuda",
    "--core none --separate-critic core", "--objective penalty --ratio per-dimension",
    "--objective distill", "--critic-warmup-steps 9",
    "--num-envs 2 --rollout-steps 8 --minibatches 99",
    "--preempt-fraction 0.5 --device tpu", "--env-backend vector --prev-action",
    "--env-backend vector --wrappers TimeLimit", "--env-backend vector --action-masks", "--preset auto",
    "--resume runs/none --gamma 0.5", "--resume runs/none --no-normalize-obs", "--resume --help-me", "CartPole-v1",
    "env=CartPole-v1", "-x", "--=", "--seed 1 2", "--quiet True", "--no-gamma",
)  # fmt: skip


def plain_type(flag: Flag) -> Any:
    """The type of one value of a flag."""
    kind = typing.get_args(flag.kind)[0] if typing.get_origin(flag.kind) is typing.Annotated else flag.kind
    while typing.get_origin(kind) not in (None, typing.Literal):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def wrong_lines(command: str) -> Iterator[str]:
    """Command lines with one mistake."""
    flags = [flag for flag in flags_of(OPTIONS[command]) if not flag.positional]
    if command not in ("train", "train --resume RUN_DIR"):
        flags = [flag for flag in flags if flag.field not in cli_names("train")] + flags[:3]
    for number, flag in enumerate(flags):
        name, kind = f"--{flag.field.replace('_', '-')}", plain_type(flag)
        if kind in (int, float):
            yield f"{name} abc"
        elif typing.get_origin(kind) is typing.Literal:
            yield f"{name} nothing"
        elif kind is bool:
            yield f"{name} maybe"
        if number % 3 == 0:
            yield f"{name[:-1]}zz 3"
        may_be_empty = kind is bool or "tuple" in str(flag.kind) or flag.field.endswith("env_kwargs")
        if number % 3 == 1 and not may_be_empty:
            yield name
    yield from (f"--{name} 3" for name in FOREIGN[:: 10 if command == "train" else 60])
    yield "--no-such-flag 3"


def cli_names(command: str) -> set[str]:
    return {flag.field for flag in flags_of(OPTIONS[command])}


def command_lines(command: str) -> list[str]:
    prefix = {"train --resume RUN_DIR": "--resume none ", "plot kl": "kl "}.get(command, "")
    lines = [prefix + line for line in dict.fromkeys(wrong_lines(command))]
    if command == "train":
        lines += [f"--{line}" for line in OUT_OF_RANGE] + list(COMBINATIONS)
    return lines


IN_FULL = pytest.mark.slow(reason="40 s in all")
LINES = [*((command, 20) for command in OPTIONS), *(pytest.param(c, 1, marks=IN_FULL) for c in OPTIONS)]
"""Commands, and which of their lines are tested: the fast tests have every 20th one. All lines take 40 seconds."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("command", "every"), LINES)
def test_wrong_command_lines_end_with_code_2_and_a_message(
    command: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *words = command.partition(" --")[0].replace("plot kl", "plot").split()
    main = importlib.import_module(f"shmppo.{cli.COMMANDS[name].module}").main
    for line in command_lines(command)[::every]:
        code = exit_code(main, [*words, *line.split(" ")])
        error = capsys.readouterr().err
        assert code == 2, f"{command}: {line!r} ends with {code}: {error}"
        assert error.strip(), line
        assert "Traceback" not in error or "nothing" in line, f"{command}: {line!r}: {error}"
    assert not list(tmp_path.iterdir()), "a refused command leaves no files"


LONG = "x" * 300
NOBODY = "~nosuchuser/x"
TOO_LONG = "File name too long: "
NO_HOME = "begins with a user without a home directory; write the whole path"

CASES: list[tuple[str, str, str]] = [
    ("train", f"--run-dir {LONG}", TOO_LONG),
    ("train", f"--config {LONG}", "cannot be read ([Errno 36] File name too long"),
    ("train", f"--resume {LONG}", TOO_LONG),
    ("train", f"--init-from {LONG}", TOO_LONG),
    ("evaluate", LONG, TOO_LONG),
    ("evaluate", f"runs/none --checkpoint {LONG}", TOO_LONG),
    ("export", LONG, TOO_LONG),
    ("replay", LONG, TOO_LONG),
    ("plot", LONG, TOO_LONG),
    ("train", f"--run-dir {NOBODY}", NO_HOME),
    ("train", f"--config {NOBODY}", NO_HOME),
    ("train", f"--resume {NOBODY}", NO_HOME),
    ("train", f"--init-from {NOBODY}", NO_HOME),
    ("evaluate", NOBODY, NO_HOME),
    ("evaluate", f"runs/none --checkpoint {NOBODY}", NO_HOME),
    ("verify", NOBODY, f"RUN_DIRS {NOBODY} {NO_HOME}"),
    ("verify", LONG, TOO_LONG),
    ("train", "--worker-timeout 1e7", "--worker-timeout is 10000000.0; it must be positive and at most 1e6 seconds"),
    ("train", "--worker-timeout 1e20", "--worker-timeout is 1e+20; it must be positive and at most 1e6 seconds"),
    ("train", "--hidden-size 1000000000000", "--hidden-size is 1000000000000; it must be at most 1048576"),
    ("train", "--num-layers 1000000000000", "--num-layers is 1000000000000; it must be at most 100"),
    ("train", "--encoder-sizes 1000000000000", "each must be at least 1 and at most 1048576"),
    ("train", "--network :", "--network : is not of the form module:attribute; name a class or function like that"),
    ("train", "--network .a:b", "--network .a:b is not of the form module:attribute"),
    ("train", "--network subprocess:Popen", "is a class, but not a subclass of torch's Module; name such a class"),
    ("train", "--network test_bad_command_lines:missing", "module test_bad_command_lines has no missing"),
    ("train", "--network raising_network:make", "the import of raising_network raised ZeroDivisionError"),
    ("train", "--env :", "--env :"),
    ("train", "--wrappers :", "--wrappers : is not of the form module:attribute"),
]


def only_error(command: str, arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must be refused, and return its message."""
    main = importlib.import_module(f"shmppo.{command}").main
    assert exit_code(main, arguments.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert not any(line.startswith("Traceback") for line in lines) or "raising_network" in lines[-1]
    return lines[-1]


@pytest.mark.parametrize(("command", "arguments", "message"), CASES, ids=lambda value: str(value)[:40])
def test_a_value_that_no_run_can_use_is_refused_in_one_line(
    command: str,
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "raising_network.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    workers = " --workers 0" if command == "train" and "--resume" not in arguments else ""
    error = only_error(command, arguments + workers, capsys)
    assert message in error, f"the message is: {error}"
    assert not (tmp_path / "runs").exists()
