"""Fixtures and helpers that use only the public API and the command line of the package."""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import functools
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shmppo import TrainConfig, train

TESTS = Path(__file__).parent
HELPERS = ("forkserver", "resource_tracker", "semaphore_tracker")
"""multiprocessing's own helpers: they live as long as this process and end with it."""
RENAMED = {"EnvironmentFault": "EnvError", "WorkerFault": "WorkerError"}
"""Exceptions of older versions, and their present names."""
NO_CHECK = tuple(
    word
    for field in dataclasses.fields(TrainConfig)
    for word in ("--check-determinism", "0")
    if field.name == "check_determinism"
)
"""Flags of a run without the check of its environment, whose processes end while tests look at the processes."""


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def descendants() -> list[int]:
    """Process ids below this process. psutil would look at all processes of the machine, after each test."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return [process.pid for process in psutil.Process().children(recursive=True)]
    pids = [os.getpid()]
    for pid in pids:
        with suppress(OSError):  # it has ended
            pids += [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in children_of(task)]
    return pids[1:]


def children_of(task: Path) -> list[str]:
    return (task / "children").read_text().split()


def worker_processes() -> list[psutil.Process]:
    """Descendants of this process that are not multiprocessing's own helpers."""
    found = []
    for pid in descendants():
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())
            helper = any(name in command for name in HELPERS) and process.ppid() == psutil.Process().pid
        except psutil.Error:
            continue
        if not helper:
            found.append(process)
    return found


def checking(learner: psutil.Process | None = None) -> list[psutil.Process]:
    """The processes of the check that run, without those that they start themselves: the import of glfw starts one."""
    found = []
    for process in (learner or psutil.Process()).children():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and "determinism_check" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for_the_check(row: dict[str, float]) -> bool:
    """A callback that lets the check end before the run continues."""
    for check in gc.get_objects():
        if type(check).__name__ == "CheckProcesses":
            check.poll = functools.partial(lambda finding: finding, check.wait())
    return False


@pytest.fixture
def background_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process check their environment (--check-determinism), at the usual priority."""
    monkeypatch.setattr("shmppo.envs.determinism_check.LOWEST_PRIORITY", "")


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    _, alive = psutil.wait_procs(worker_processes(), timeout=60)
    commands = [process.cmdline() for process in alive]
    for process in alive:  # so that the next tests do not find it
        process.kill()
    assert not alive, f"left running: {commands}"


@pytest.fixture
def run_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m MODULE …` in an empty working directory, as a user would."""
    (tmp_path / "cwd").mkdir()

    def run(module: str, *args: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, args)],
            cwd=tmp_path / "cwd",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def environments_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that a test starts import `environments`."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def shared_run(root: Path, name: str, configuration: Callable[[Path], TrainConfig]) -> Path:
    """Train once for all processes of the tests, and return the directory of the run, which no test may change.

    Args:
        root: the fixture `shared_directory`.
        name: of the run.
        configuration: returns the configuration for a run directory.
    """
    run_dir = root / name / "run"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    with open(run_dir.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (run_dir / "summary.json").exists():
            train(configuration(run_dir))
    return run_dir


def slow_after(fast: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases for `pytest.mark.parametrize`: the first `fast` ones, and the others marked as slow."""
    return [case if i < fast else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(cases)]


@contextmanager
def raises(kind: str, message: str) -> Iterator[list[Any]]:
    """Assert that the body raises an exception of the class `kind` whose text matches, and no other one.

    The class is given by its name, because older versions do not have all of them. Yields a list that gets the
    exception.
    """
    caught: list[Any] = []
    try:
        yield caught
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        caught.append(error)
    assert caught, f"no {kind} was raised"
    names = [RENAMED.get(base.__name__, base.__name__) for base in type(caught[0]).__mro__]
    assert kind in names, f"{caught[0]!r} was raised instead of a {kind}"
    assert re.search(message, str(caught[0])), f"the message is: {caught[0]}"


@contextmanager
def no_error() -> Iterator[None]:
    """Assert that the body raises no exception."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{error!r} was raised") from error


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Assert that the body raises a ConfigError of one line whose text matches, and no other exception."""
    with raises("ConfigError", message) as caught:
        yield
    assert "\n" not in str(caught[0])


def exit_code(main: Callable[[], int], arguments: Iterable[object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the function of a command with arguments. An exception that reaches its caller is a failure of the test."""
    monkeypatch.setattr(sys, "argv", ["shmppo", *map(str, arguments)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException as error:
        raise AssertionError(f"the command ends with a traceback: {error!r}") from error


def untimed_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table without measured times."""
    return [{k: v for k, v in row.items() if "second" not in k and "wait" not in k} for row in csv_rows(path)]


def contents(run_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file()}
