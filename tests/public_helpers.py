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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shmppo import TrainConfig, train

TESTS = Path(__file__).parent
HELPERS = ("forkserver", "resource_tracker", "semaphore_tracker")
"""multiprocessing's own helpers: they live as long as this process and end with it."""
SIX_ITERATIONS = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=32, minibatches=2, epochs=2, hidden_size=16, encoder_sizes=(16,),
    workers=0, quiet=True, total_steps=4 * 32 * 6, seq_len=8,
)  # fmt: skip
"""A small run of six iterations."""
NO_CHECK = ("--check-determinism", "0")
"""Flags of a run without the check of its environment, whose processes end while tests look at the processes."""


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments in another process. options: of `subprocess.run`."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, **options)


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


def wait_for_rows(run_dirs: Iterable[Path], processes: Iterable[subprocess.Popen[Any]], rows: int) -> None:
    """Wait until runs have finished at least `rows` iterations. No process may end before."""
    files, deadline = [path / "metrics.csv" for path in run_dirs], time.monotonic() + 200
    while not all(file.exists() and len(file.read_text().splitlines()) > rows for file in files):
        assert all(process.poll() is None for process in processes), "ended before it trained"
        assert time.monotonic() < deadline, "did not begin to train within 200 s"
        time.sleep(0.05)


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

    def run(module: str, *args: object) -> subprocess.CompletedProcess[str]:
        return python("-m", module, *args, cwd=tmp_path / "cwd")

    return run


@pytest.fixture
def environments_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that a test starts import `environments`."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def remove_receipt(run_dir: Path) -> None:
    """Remove the receipt of a run, as a forger would replace it."""
    path = run_dir / "summary.json"
    path.write_text(json.dumps(summary_of(run_dir) | {"receipt": None}))


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


def train_in(
    run_dir: Path, config: TrainConfig, *, callback: Any = None, loggers: Sequence[Any] = (), **changes: Any
) -> Any:
    """Train a configuration with changes in a directory, and return the summary."""
    config = dataclasses.replace(config, **changes, run_dir=str(run_dir))
    return train(config, callback=callback, loggers=loggers)


def run_fixture(config: TrainConfig, **changes: Any) -> Any:
    """A fixture: the directory of a run that the tests of a module share and do not change."""

    @pytest.fixture(scope="module")
    def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
        run_dir = tmp_path_factory.mktemp("module") / "run"
        train_in(run_dir, config, **changes)
        return run_dir

    return run


def slow_after(fast: int, cases: Iterable[Any], reason: str) -> list[Any]:
    """Return cases for `pytest.mark.parametrize`: the first `fast` ones, and the others marked as slow.

    reason: their duration.
    """
    mark = pytest.mark.slow(reason=reason)
    return [case if i < fast else pytest.param(case, marks=mark) for i, case in enumerate(cases)]


@contextmanager
def raises(kind: str, message: str) -> Iterator[list[Any]]:
    """Assert that the body raises an exception of the class `kind` whose text matches, and no other one.

    Yields a list that gets the exception.
    """
    caught: list[Any] = []
    try:
        yield caught
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        caught.append(error)
    assert caught, f"no {kind} was raised"
    names = [base.__name__ for base in type(caught[0]).__mro__]
    assert kind in names, f"{caught[0]!r} was raised instead of a {kind}"
    assert re.search(message, str(caught[0])), f"the message is: {caught[0]}"


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Assert that the body raises a ConfigError of one line whose text matches, and no other exception."""
    with raises("ConfigError", message) as caught:
        yield
    assert "\n" not in str(caught[0])


def exit_code(main: Callable[[], int], arguments: Iterable[object]) -> int:
    """Run the function of a command with arguments. An exception that reaches its caller is a failure of the test."""
    before, sys.argv = (sys.argv, sys.excepthook), ["shmppo", *map(str, arguments)]
    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException as error:
        raise AssertionError(f"the command ends with a traceback: {error!r}") from error
    finally:
        sys.argv, sys.excepthook = before


def evaluation_rows(run_dir: Path) -> list[dict[str, float]]:
    """The rows of eval.csv, without the duration."""
    return [{k: float(v) for k, v in row.items() if k != "eval/seconds"} for row in csv_rows(run_dir / "eval.csv")]


def untimed_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table without measured times."""
    return [{k: v for k, v in row.items() if "second" not in k and "wait" not in k} for row in csv_rows(path)]


def contents(run_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file()}
