"""Disks and limits with faults: full and read-only disks, removed directories, limits of the process, and threads."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import logging
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from public_helpers import SIX_ITERATIONS, raises, slow_after, summary_of, train_in

from shmppo import ConfigError, load_policy, resume, train

BASE = dataclasses.replace(SIX_ITERATIONS, rollout_steps=16, total_steps=4 * 16 * 6, checkpoint_every=1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the weights of BASE."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    return str(train_in(run_dir, BASE)["weights_sha256"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "shmppo-test", path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small disk is not permitted here: {getattr(error, 'stderr', '') or error}")
    try:
        yield path
    finally:
        subprocess.run(["chattr", "-R", "-i", path], check=False, capture_output=True)
        subprocess.run(["umount", path], check=True)


def fill(disk: Path) -> None:
    """Write to a disk until it is full."""
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def free(disk: Path) -> None:
    """Undo `fill`."""
    (disk / "filler").unlink()


def make_read_only(disk: Path) -> None:
    """Let no file of a disk be written, created, or removed, also by root."""
    result = subprocess.run(["chattr", "-R", "+i", disk / "run"], check=False, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"files cannot be made immutable here: {result.stderr}")


def make_writable(disk: Path) -> None:
    """Undo `make_read_only`."""
    subprocess.run(["chattr", "-R", "-i", disk / "run"], check=True)


FAULTS = {"full": (fill, free), "read-only": (make_read_only, make_writable)}


def at(**actions: Callable[[], object]) -> Callable[[dict[str, float]], None]:
    """A callback that does something after given iterations, for example at(i2=f)."""

    def callback(row: dict[str, float]) -> None:
        actions.get(f"i{row['iteration']:.0f}", lambda: None)()

    return callback


# --- the directory of the run


def replace(run_dir: Path) -> None:
    run_dir.rename(run_dir.with_name("moved"))
    run_dir.mkdir()


@pytest.mark.parametrize("remove", [shutil.rmtree, replace])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_whose_directory_is_removed_ends_at_the_next_row(
    workers: int, remove: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    rows: list[float] = []

    def callback(row: dict[str, float]) -> None:
        rows.append(row["iteration"])
        if row["iteration"] == 2:
            remove(run_dir)

    with raises("SaveError", r"run cannot be written \(No such file or directory\); start the run again$"):
        train_in(run_dir, BASE, workers=workers, checkpoint_every=None, callback=callback)
    assert rows == [1, 2]
    assert not capfd.readouterr().err
    assert not (run_dir / "metrics.csv").exists()


# --- full and read-only disks

CONTINUE = r"cannot be written \(.*\); continue with \S+ -m shmppo\.train --resume \S+/run$"


@pytest.mark.parametrize("fault", slow_after(1, FAULTS, "2 s"))
def test_a_run_on_a_disk_with_a_fault_ends_at_once_and_resumes_from_its_last_checkpoint(
    fault: str, undisturbed: str, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin, end = FAULTS[fault]
    run_dir = disk / "run"
    with raises("SaveError", CONTINUE):
        train_in(run_dir, BASE, callback=at(i3=lambda: begin(disk)))
    assert not capfd.readouterr().err
    end(disk)
    assert not list(run_dir.rglob("*.partial"))
    assert load_policy(run_dir).iteration == 2
    assert resume(run_dir)["weights_sha256"] == undisturbed
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 7


def test_a_row_that_was_written_in_part_is_removed_by_resume(
    undisturbed: str, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = disk / "run"
    no_checkpoints: dict[str, Any] = {"checkpoint_every": None, "eval_every": 99, "best_by": "eval/return"}
    config = dataclasses.replace(BASE, **no_checkpoints, run_dir=str(run_dir))
    with raises("SaveError", CONTINUE):  # rows fit into the rest of the last page of metrics.csv
        train(dataclasses.replace(config, total_steps=4 * 16 * 60), callback=at(i3=lambda: fill(disk)))
    free(disk)
    assert not (run_dir / "metrics.csv").read_bytes().endswith(b"\r\n")
    changes = {"total_steps": 4 * 16 * 6, "anneal_steps": 4 * 16 * 6}
    assert resume(run_dir, **changes)["weights_sha256"] == undisturbed
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 7


# --- memory


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_run_without_memory_ends_in_one_sentence_and_can_be_resumed(
    error: Exception, undisturbed: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"

    def fail() -> None:
        raise error

    with raises("ShmppoError", r"^there is not enough memory \(.*\); free .*, and continue with .* --resume \S+/run$"):
        train_in(run_dir, BASE, callback=at(i3=fail))
    assert summary_of(run_dir)["stop_reason"] == "error"
    assert resume(run_dir)["weights_sha256"] == undisturbed


def mapped_shared_memory() -> int:
    """Bytes of the shared memory that this process has mapped."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]
    ranges = [line.split()[0].split("-") for line in lines]
    return sum(int(high, 16) - int(low, 16) for low, high in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the shared memory of a process")
@pytest.mark.skipif(
    "del persistent_id" not in inspect.getsource(torch.serialization),
    reason="torch.save of torch 2.6 keeps tensors in a reference cycle",
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_shared_memory_of_a_run_is_released_without_the_garbage_collector(workers: int, tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        before = mapped_shared_memory()
        for seed in (1, 2):
            train_in(tmp_path / str(seed), BASE, seed=seed, workers=workers)
            assert mapped_shared_memory() == before
    finally:
        gc.enable()


# --- the process of the caller


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_run_trains_if_the_caller_has_disabled_gradients(
    mode: Callable[[], Any], undisturbed: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    with mode():
        train_in(run_dir, BASE, stop_at_iteration=3)
        assert resume(run_dir, stop_at_iteration=6)["weights_sha256"] == undisturbed
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("fails", [True, False])
def test_the_loggers_of_the_caller_are_as_before_after_a_run(
    fails: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = logging.getLogger("shmppo")
    caplog.set_level(logging.DEBUG, "shmppo")

    def state() -> list[Any]:
        loggers = (package, logging.getLogger("py.warnings"), logging.getLogger())
        return [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]

    logging.captureWarnings(True)
    try:
        before = state()
        show, hook, threads = warnings.showwarning, threading.excepthook, torch.get_num_threads()

        def fail() -> None:
            if fails:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            train_in(tmp_path / "run", BASE, callback=at(i2=fail))
        assert state() == before
        error = summary_of(tmp_path / "run")["error"]
        assert error.startswith("ZeroDivisionError() at ") if fails else error is None
        assert (warnings.showwarning, threading.excepthook, torch.get_num_threads()) == (show, hook, threads)
    finally:
        logging.captureWarnings(False)


# --- limits of the machine and of the process


def test_a_second_run_in_another_thread_is_refused_and_the_first_one_is_not_disturbed(
    undisturbed: str, tmp_path: Path
) -> None:
    messages: list[str] = []

    def second() -> None:
        try:
            train_in(tmp_path / "second", BASE)
        except ConfigError as error:
            messages.append(str(error))

    def in_a_thread() -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    assert train_in(tmp_path / "run", BASE, callback=at(i2=in_a_thread, i3=second))["weights_sha256"] == undisturbed
    assert not (tmp_path / "second").exists()
    assert len(messages) == 2
    assert messages[0].startswith("`train` or `resume` was called while another run trains in this process; wait for")
