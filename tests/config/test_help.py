"""The help texts of all commands: what they show, their width, and how fast they are."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from public_helpers import python

from docs.generate import option_types
from shmppo import cli
from shmppo.config.command_line import flags_of
from shmppo.config.flags import common_fields

COMMAND_LINES = [f"{command} --help" for command in ("", *cli.COMMANDS, "plot kl", "train --resume RUN_DIR")]
COMMAND_LINES += ["train --help-all", *(f"bench {name} --help" for name in cli.options_by_subcommand("bench"))]


def option_names(command: str) -> list[str]:
    return [flag.field for flag in flags_of(option_types()[command])]


def help_of(arguments: str) -> str:
    """The text that `shmppo ARGUMENTS` prints."""
    before, path, output = sys.argv, list(sys.path), io.StringIO()
    sys.argv = ["shmppo", *arguments.split()]
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            assert cli.main() == 0
    finally:
        sys.argv, sys.path[:] = before, path
    return output.getvalue()


@pytest.mark.parametrize("arguments", COMMAND_LINES)
def test_help_names_the_command_and_fits_on_a_terminal(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(arguments)
    assert text.startswith("usage: shmppo ")
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(("usage: ", "Example: ")))


def test_help_of_train_shows_the_common_flags_and_help_all_every_flag() -> None:
    text, complete = help_of("train --help"), help_of("train --help-all")
    assert len(common_fields()) <= 24
    for name in option_names("train"):
        line = re.compile(rf"^\W{{1,4}}--{name.replace('_', '-')}\b(?!-)", re.MULTILINE)
        assert bool(line.search(text)) == (name in common_fields()), name
        assert line.search(complete), name
    assert f"Add --help-all to see all {len(option_names('train'))} flags." in text
    assert "Example: shmppo train --env " in text
    assert help_of("train -h") == text
    assert help_of("train --env Pendulum-v1 --help") == text


def test_help_shows_the_defaults_of_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"seed": 77, "workers": 3}')
    text = " ".join(help_of(f"train --config {tmp_path / 'a.json'} --help").replace("\u2502", "").split())
    assert "Seed of all random numbers: initial weights, environments, actions, and minibatches. (default: 77)" in text
    assert "None: one per usable core, but at most N. (default: 3)" in text


def test_no_help_text_imports_torch() -> None:
    script = f"""
import contextlib, io, sys
from shmppo import cli
for line in {COMMAND_LINES!r}:
    sys.argv = ["shmppo", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        assert cli.main() == 0
    assert "torch" not in sys.modules, line
"""
    result = python("-c", script)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", ["shmppo", "shmppo.train"])
def test_help_into_a_pipe_that_is_closed_early_ends_quietly(command: str) -> None:
    line = f'"{sys.executable}" -m {command} --help | head -1'
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("usage: ")
    assert result.stderr == ""
