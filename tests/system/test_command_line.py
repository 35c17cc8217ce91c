"""The command line: files of flags, help by subject, misspelled flags, all ways to start a command, completion."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import make_run_directory, slow_after
from public_helpers import python, refused

import shmppo
from shmppo import cli
from shmppo.config.command_line import field_texts
from shmppo.config.flags import parse_start, read_config_file, subjects
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.kernels import supported_variants


def parse(*arguments: object, default: TrainConfig | None = None) -> TrainConfig:
    return parse_start([str(a) for a in arguments], default=default)[0]


@pytest.mark.long
def test_workers_import_the_package_that_runs_and_not_the_one_in_the_directory(tmp_path: Path) -> None:
    """As with `uvx --from .` in a copy of the repository, whose kernels are not compiled."""
    (tmp_path / "here" / "shmppo").mkdir(parents=True)
    (tmp_path / "here" / "shmppo" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    script = "from shmppo.cli import main\nif __name__ == '__main__':\n    raise SystemExit(main())"
    (tmp_path / "script.py").write_text(script)
    flags = ["--workers", 1, "--stop-at-iteration", 1, "--quiet", "--run-dir", tmp_path / "run"]
    path = {**os.environ, "PYTHONPATH": str(Path(shmppo.__file__).parents[1])}
    result = python(tmp_path / "script.py", "train", *flags, cwd=tmp_path / "here", env=path)
    assert result.returncode == 0, result.stderr


def test_flags_override_the_file_and_the_file_overrides_the_default(tmp_path: Path) -> None:
    default = TrainConfig(num_envs=4, epochs=3, gamma=0.9)
    file = tmp_path / "flags.yaml"
    file.write_text("env: Pendulum-v1\nhide_obs: [2]\nlearning-rate: 1e-4\nepochs: 7\nnormalize_obs: false\ngamma: 1\n")
    config = parse("--config", file, "--epochs", 9, default=default)
    expected = dataclasses.replace(
        default, env="Pendulum-v1", hide_obs=(2,), learning_rate=1e-4, epochs=9, normalize_obs=False, gamma=1.0
    )
    assert config == expected
    assert parse(f"--config={file}").epochs == 7
    assert parse(default=default) == default


def test_the_configuration_file_of_a_run_configures_another_run(tmp_path: Path) -> None:
    run = TrainConfig(env="Pendulum-v1", seed=3, stop_at_iteration=2, run_dir=str(tmp_path / "run"))
    file = make_run_directory(run) / "config.json"
    config = parse("--config", file, "--seed", 4)
    assert config.to_json() == run.to_json() | {"seed": 4, "run_dir": None, "stop_at_iteration": None}
    assert parse("--config", file, "--total-steps", 4096).anneal_horizon == 4096
    other = make_run_directory(dataclasses.replace(run, anneal_steps=512, run_dir=str(tmp_path / "other")))
    assert parse("--config", other / "config.json", "--total-steps", 4096).anneal_horizon == 512


FILES_REFUSED: list[tuple[str, str, str]] = [
    ("a.json", "{", r"--config .*a\.json is not JSON .*; correct it"),
    ("a.yaml", "a: [", r"--config .*a\.yaml is neither JSON nor YAML .*; correct it"),
    ("a.yaml", "- 1", r"--config .*a\.yaml is not a mapping; write one"),
    ("a.yaml", "num_evns: 3", r"there is no field num_evns \(did you mean num_envs\?\)"),
    ("a.yaml", "num_envs: many", r"--num-envs is 'many'; it must be int"),
    ("a.yaml", "seed: true", r"--seed is True; it must be int"),
    ("a.yaml", "target_kl: high", r"--target-kl is 'high'; it must be float \| None"),
    ("a.yaml", "core: rnn", r"--core is 'rnn'; it must be Literal\['lstm', 'gru', 'lmu', 'lru', 'gtrxl', 'none'\]"),
]


@pytest.mark.parametrize(("name", "text", "message"), FILES_REFUSED)
def test_a_bad_file_is_refused_with_its_name_in_one_sentence(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with refused(message):
        read_config_file(tmp_path / name, "--config")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config_file(tmp_path / "none", "--config")


def test_an_unknown_flag_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse("--toal-steps", 5)
    assert raised.value.code == 2
    assert "--total-steps INT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--env-kwargs a=NaN", r"--env-kwargs is \{'a': nan\}; its values must be finite numbers"),
        ("--env-kwargs a=-Infinity", r"--env-kwargs is \{'a': -inf\}; its values must be finite numbers"),
        ("--env-kwargs a=[1e999]", r"--env-kwargs is \{'a': \[inf\]\}; its values must be finite numbers"),
        ("--run-dir=", "--run-dir is empty; name a directory, or leave it out"),
    ],
)
def test_values_without_a_meaning_are_refused_at_once(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(*arguments.split())


NOT_FLAGS = ("rank", "ranks", "agents", "convolutions")


def test_help_lists_the_subjects_and_gives_each_flag_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help-all")
    text = " ".join(capsys.readouterr().out.replace("\u2502", "").split())
    for name, subject in subjects().items():
        assert subject.__doc__ is not None
        assert f" {name} options " in text
        assert " ".join(subject.__doc__.split()) in text
    for name, meaning in field_texts(TrainConfig).items():
        assert (f"--{name.replace('_', '-')} " in text.replace(",", " ")) == (name not in NOT_FLAGS)
        assert meaning in text or name in NOT_FLAGS, name


def script(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the console script. Unlike `python -m`, it does not find modules in the working directory by itself."""
    lines = (
        "import sys; sys.path.remove('')",
        f"sys.argv = ['shmppo', *{arguments!r}]",
        "from shmppo.cli import main; sys.exit(main())",
    )
    return python("-c", "; ".join(lines), cwd=directory)


def test_the_package_is_a_command() -> None:
    result = python("-m", "shmppo")
    assert (result.returncode, result.stdout) == (0, cli.usage() + "\n")
    assert (
        python("-m", "shmppo", "--version").stdout
        == f"shmppo {shmppo.__version__}, kernels: {supported_variants()[0]}\n"
    )
    result = python("-m", "shmppo", "no-such-command")
    assert (result.returncode, result.stdout) == (2, "")
    assert "error: shmppo has no command no-such-command" in result.stderr


@pytest.mark.parametrize("name", slow_after(1, cli.COMMANDS, "3 s per command"))
def test_every_command_has_a_module_and_help(name: str) -> None:
    module = f"shmppo.{name.replace('-', '_')}"
    result = python("-m", module, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: {sys.executable} -m {module} ")
    same = python("-m", "shmppo", name, "--help")
    assert (same.returncode, same.stderr) == (0, "")
    words = [
        output.replace(f"-m {module}", f"-m shmppo {name}").replace("\\\n", "").split()
        for output in (result.stdout, same.stdout)
    ]
    assert words[0] == words[1]


@pytest.mark.slow(reason="about 20 s")
def test_the_console_script_knows_its_commands(tmp_path: Path) -> None:
    result = script("--help")
    assert result.returncode == 0
    assert all(f"  {name} " in result.stdout for name in cli.COMMANDS)
    result = script("evluate")
    assert (result.returncode, result.stderr) == (
        2,
        "error: shmppo has no command evluate (did you mean evaluate?); see shmppo --help\n",
    )
    result = script("evaluate", str(tmp_path / "none"))
    assert result.returncode == 2
    assert "does not exist" in result.stderr
    (tmp_path / "a.json").write_text(json.dumps({"total_steps": 64}))
    small = ("--num-envs", "2", "--rollout-steps", "32", "--minibatches", "1", "--workers", "1", "--quiet")
    (tmp_path / "own.py").write_text("import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    task = ("--config", str(tmp_path / "a.json"), "--env", "own:make")
    result = script("train", *task, *small, "--run-dir", str(tmp_path / "run"), directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.long
def test_completion_knows_commands_and_flags(tmp_path: Path) -> None:
    completions = tmp_path / "completions"
    assert script("--tyro-write-completion", "bash", str(completions)).returncode == 0
    ask = """
    source "$1"; function=$(complete -p shmppo | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); $function; echo "${COMPREPLY[*]}"; }
    ask shmppo ev; ask shmppo train --tot; ask shmppo evaluate --epi; ask shmppo train --resu
    """
    assert script("--tyro-print-completion", "bash").stdout.strip() == completions.read_text().strip()
    result = subprocess.run(["bash", "-c", ask, "bash", str(completions)], capture_output=True, text=True, check=False)
    assert result.stdout.split("\n")[:4] == ["evaluate", "--total-steps", "--episodes", "--resume"]
