"""The help texts of all commands, compared with the files in tests/config/help.

Write the files after a change of a help text: `python tests/config/test_help.py --record`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmppo import cli
from shmppo.config.flags import COMMON
from shmppo.config.help import PLAIN

GOLDEN = Path(__file__).parent / "help"
COMMAND_LINES = {
    "shmppo": "--help",
    "train": "train --help",
    "train-all": "train --help-all",
    "train-resume": "train --resume RUN_DIR --help",
    "evaluate": "evaluate --help",
    "export": "export --help",
    "plot": "plot --help",
    "plot-kl": "plot kl --help",
    "replay": "replay --help",
    "check-env": "check-env --help",
    "check-env-all": "check-env --help-all",
    "verify": "verify --help",
    "tune": "tune --help",
    "tune-all": "tune --help-all",
    "search": "search --help",
    "bench": "bench --help",
    "bench-throughput": "bench throughput --help",
    "bench-scaling": "bench scaling --help",
    "bench-stragglers": "bench stragglers --help",
    "bench-topologies": "bench topologies --help",
}


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


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_help_is_the_recorded_text(name: str) -> None:
    recorded = (GOLDEN / f"{name}.txt").read_text()
    assert help_of(COMMAND_LINES[name]) == recorded, f"if this is intended, run python {Path(__file__).name} --record"


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_help_fits_in_80_columns_and_is_wrapped_once(name: str) -> None:
    lines = help_of(COMMAND_LINES[name]).splitlines()
    assert max(map(len, lines)) <= 80
    for line, following in itertools.pairwise(lines):
        continues = line.startswith(" " * 26) and following.startswith(" " * 26) and following.strip()
        assert not continues or len(line) + 1 + len(following.split()[0]) > 80, f"{line!r} is wrapped too early"
    text = "\n".join(lines)
    assert all(bad not in text for bad in ("{None}", "(default", "None:", "Default: None", "Default: ."))


def test_every_recorded_text_belongs_to_a_command() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(COMMAND_LINES)


def test_help_of_train_begins_with_the_common_flags_and_ends_with_an_example() -> None:
    text = help_of("train --help")
    common, rest = text.split("\n\n--help-all shows all ")
    assert common.count("\n  --") == len(COMMON) <= 20
    assert rest.split("\n\n")[-1].startswith("Example:\n  shmppo train --env ")
    assert help_of("train -h") == text
    assert help_of("train --env Pendulum-v1 --help") == text


def test_help_is_narrower_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert 55 < max(map(len, help_of("train --help").splitlines())) <= 60


def test_help_shows_the_defaults_of_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"seed": 77, "workers": 3, "clip_reward": 2.5}')
    text = " ".join(help_of(f"train --config {tmp_path / 'a.json'} --help-all").split())
    assert "Seed of all random numbers: initial weights, environments, actions, and minibatches. Default: 77." in text
    assert "None: one per usable core, but at most N. Default: 3." in text
    assert "None: no clipping. Default: 2.5." in text


def test_no_help_text_imports_torch() -> None:
    script = f"""
import contextlib, io, sys
from shmppo import cli
for line in {list(COMMAND_LINES.values())!r}:
    sys.argv = ["shmppo", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        assert cli.main() == 0
    assert "torch" not in sys.modules, line
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr


def run_train(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmppo.train", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | environment
    )


def test_help_is_plain_text_for_an_ascii_terminal() -> None:
    result = run_train("--help", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "--gamma FLOAT           gamma, discount factor per step." in result.stdout
    for name, arguments in COMMAND_LINES.items():
        assert help_of(arguments).translate(PLAIN).isascii(), f"{name} has a letter without a plain replacement"


@pytest.mark.parametrize("command", ["shmppo", "shmppo.train"])
def test_help_into_a_pipe_that_is_closed_early_ends_quietly(command: str) -> None:
    line = f'"{sys.executable}" -m {command} --help | head -1'
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("usage: ")
    assert result.stderr == ""


def record() -> None:
    """Write all help texts to files."""
    os.environ["COLUMNS"] = "200"
    for name, arguments in COMMAND_LINES.items():
        (GOLDEN / f"{name}.txt").write_text(help_of(arguments))


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        sys.exit(__doc__)
