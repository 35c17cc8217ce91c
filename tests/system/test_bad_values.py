"""Values on the command line and in the environment that no run can use: one line `error: …`, and exit code 2."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from public_helpers import exit_code

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
    ("train", "--network test_bad_values:missing", "module test_bad_values has no missing"),
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
