"""Disks and limits with faults: full and read-only disks, removed directories, limits of the process, and threads."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import re
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
from public_helpers import exit_code, long_after, no_error, raises, refused, summary_of

from shmppo import ConfigError, TrainConfig, load_policy, resume, train
from shmppo.train import main

BASE = TrainConfig(
    env="CartPole-v1", num_envs=4, rollout_steps=16, minibatches=2, epochs=1, hidden_size=16, encoder_sizes=(16,),
    workers=0, quiet=True, total_steps=4 * 16 * 6, seq_len=8, checkpoint_every=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the weights of BASE."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    return str(train(dataclasses.replace(BASE, run_dir=str(run_dir)))["weights_sha256"])


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


def partial_files(run_dir: Path) -> list[Path]:
    return list(run_dir.rglob("*.partial"))


# --- the directory of the run


def empty(run_dir: Path) -> None:
    for path in run_dir.iterdir():
        path.unlink()


@pytest.mark.parametrize("remove", long_after(1, [shutil.rmtree, empty]))
def test_a_run_whose_directory_is_removed_ends_with_a_checkpoint_in_a_new_one(
    remove: Callable[[Path], None],
    undisturbed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    with raises("SaveError", r"run was removed during the run; it contains a new checkpoint now, so cont"):
        train(dataclasses.replace(BASE, run_dir=str(run_dir)), callback=at(i2=lambda: remove(run_dir)))
    assert load_policy(run_dir).iteration == 2
    assert "was removed" in (run_dir / "run.log").read_text()
    assert "was removed during the run" in summary_of(run_dir)["error"]
    assert not capsys.readouterr().err
    verify = importlib.import_module("shmppo.verify")  # older versions do not have it
    assert exit_code(verify.main, [run_dir], monkeypatch) == 0
    assert resume(run_dir)["weights_sha256"] == undisturbed
    assert exit_code(verify.main, [run_dir, "--from-iteration", 1], monkeypatch) == 0


def test_a_run_whose_directory_was_replaced_does_not_write_to_the_other_one(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def replace() -> None:
        run_dir.rename(tmp_path / "moved")
        run_dir.mkdir()

    with raises("SaveError", "was replaced by another directory during the run"):
        train(dataclasses.replace(BASE, run_dir=str(run_dir)), callback=at(i2=replace))
    assert list(run_dir.iterdir()) == []
    assert load_policy(tmp_path / "moved").iteration == 1


# --- full and read-only disks


@pytest.mark.parametrize("fault", long_after(1, FAULTS))
def test_a_run_on_a_disk_with_a_fault_warns_and_ends_with_a_summary_and_an_error(
    fault: str, undisturbed: str, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin, end = FAULTS[fault]
    run_dir = disk / "run"
    config = dataclasses.replace(BASE, run_dir=str(run_dir))
    with raises("SaveError", r"^checkpoint\.pt.* of .*run could not be written \(.*\); make sp") as caught:
        train(config, callback=at(i3=lambda: begin(disk)))
    error = capfd.readouterr().err
    assert error.count("cannot be written") == 1, error
    assert "Traceback" not in error
    assert caught[0].summary is not None
    assert caught[0].summary["weights_sha256"] == undisturbed
    end(disk)
    assert not partial_files(run_dir)
    assert load_policy(run_dir).iteration == 2
    assert resume(run_dir)["weights_sha256"] == undisturbed
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize("fault", long_after(1, FAULTS))
def test_a_run_on_a_disk_with_a_fault_for_a_while_loses_nothing(
    fault: str, undisturbed: str, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin, end = FAULTS[fault]
    run_dir = disk / "run"
    callback = at(i2=lambda: begin(disk), i4=lambda: end(disk))
    assert train(dataclasses.replace(BASE, run_dir=str(run_dir)), callback=callback)["weights_sha256"] == undisturbed
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2, lines
    assert "the run continues, and tries to write its files again" in lines[0]
    assert lines[1] == "warning: all files of the run can be written again"
    assert not partial_files(run_dir)
    assert load_policy(run_dir).iteration == summary_of(run_dir)["iterations"] == 6
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 7
    assert "no checkpoint was written, the one before is kept" in (run_dir / "run.log").read_text()


def test_files_that_cannot_be_written_later_are_named_at_the_end(disk: Path, undisturbed: str) -> None:
    run_dir = disk / "run"
    config = dataclasses.replace(BASE, run_dir=str(run_dir), keep_every=2, kl_profile_every=1)
    lost = r"^kl/000004\.npz, checkpoint-iteration-000004\.pt, kl/000005\.npz of .*run could not be written"
    with raises("SaveError", lost) as caught:
        train(config, callback=at(i3=lambda: fill(disk), i5=lambda: free(disk)))
    assert caught[0].summary is not None
    assert caught[0].summary["weights_sha256"] == undisturbed
    assert load_policy(run_dir).iteration == 6


def test_the_command_prints_the_summary_and_one_error_and_fails_if_nothing_could_be_saved(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(disk)
    with open(disk / "filler", "r+b") as file:
        file.truncate(2**20 - 4096 * 6)  # space for config.json and the tables, but for no checkpoint
    flags = "--env CartPole-v1 --workers 0 --num-envs 4 --rollout-steps 16 --minibatches 2 --total-steps 128"
    assert exit_code(main, [*flags.split(), "--run-dir", disk / "run"], monkeypatch) == 1
    output = capsys.readouterr()
    assert "weights        sha256" in output.out
    assert output.err.splitlines()[-1].startswith("error: checkpoint.pt, checkpoint-best.pt of ")
    assert len(output.err.splitlines()) == 2, output.err
    assert not partial_files(disk)


def test_a_disk_that_is_full_from_the_start_is_refused(disk: Path) -> None:
    fill(disk)
    with refused(r"cannot be written: No space left on device; .*name another directory"):
        train(dataclasses.replace(BASE, run_dir=str(disk / "run")))


# --- the process of the caller


@pytest.mark.parametrize("mode", long_after(1, [torch.inference_mode, torch.no_grad]))
def test_a_run_trains_if_the_caller_has_disabled_gradients(
    mode: Callable[[], Any], undisturbed: str, tmp_path: Path
) -> None:
    run_dir = str(tmp_path / "run")
    with mode(), no_error():
        train(dataclasses.replace(BASE, run_dir=run_dir, stop_at_iteration=3))
        assert resume(run_dir, stop_at_iteration=6)["weights_sha256"] == undisturbed
        assert not torch.is_grad_enabled()


def test_a_second_run_in_another_thread_is_refused_and_the_first_one_is_not_disturbed(
    undisturbed: str, tmp_path: Path
) -> None:
    messages: list[str] = []

    def second() -> None:
        try:
            train(dataclasses.replace(BASE, run_dir=str(tmp_path / "second")))
        except ConfigError as error:
            messages.append(str(error))

    def in_a_thread() -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    config = dataclasses.replace(BASE, run_dir=str(tmp_path / "run"))
    assert train(config, callback=at(i2=in_a_thread, i3=second))["weights_sha256"] == undisturbed
    assert not (tmp_path / "second").exists()
    assert len(messages) == 2
    assert messages[0].startswith("`train` or `resume` was called while another run trains in this process; wait for")


@pytest.mark.parametrize("fails", long_after(1, [True, False]))
def test_the_loggers_of_the_caller_are_as_before_after_a_run(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = logging.getLogger("shmppo")
    monkeypatch.setattr(package, "level", logging.DEBUG)

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
            train(dataclasses.replace(BASE, run_dir=str(tmp_path / "run")), callback=at(i2=fail))
        assert state() == before
        error = summary_of(tmp_path / "run")["error"]
        assert error.startswith("ZeroDivisionError() at ") if fails else error is None
        assert (warnings.showwarning, threading.excepthook, torch.get_num_threads()) == (show, hook, threads)
    finally:
        logging.captureWarnings(False)


# --- limits of the machine and of the process

COMMAND = "-m shmppo.train --env CartPole-v1 --num-envs 4 --rollout-steps 32 --minibatches 2 --total-steps 512"
WORKS = None
LIMITS = {
    "files of 10 KiB": ("ulimit -f 20;", r"shared memory: .* MiB could not be allocated \(.*File too large"),
    "600 MB of addresses": ("ulimit -v 600000;", "address space: torch needs more than 1024 MiB but the limit is 585"),
    "64 open files": ("ulimit -n 64;", r"open files: 2 workers need about 76 descriptors but the limit is 64"),
    "80 open files": ("ulimit -n 80;", WORKS),
    "long TMPDIR": ("export TMPDIR={long};", r"TMPDIR: .* is too long for the sockets of workers; set TMPDIR to"),
    "missing TMPDIR": ("export TMPDIR=/missing;", WORKS),
    "read-only shared memory": ("mount -t tmpfs -o ro x /dev/shm;", r"shared memory: .*Read-only file system"),
    "no inodes": ("mount -t tmpfs -o nr_inodes=1 x /dev/shm;", r"shared memory: .* could not be allocated"),
    "64 KiB of shared memory": ("mount -t tmpfs -o size=64k x /dev/shm;", r"shared memory: this run needs .* but /dev"),
}


@pytest.mark.long
@pytest.mark.parametrize("limit", LIMITS)
def test_a_run_with_a_limit_works_or_is_refused_in_one_sentence(limit: str, tmp_path: Path) -> None:
    setup, expected = LIMITS[limit]
    long = tmp_path / ("x" * 110)
    long.mkdir()
    (tmp_path / "cwd").mkdir()
    script = f"{setup.format(long=long)} exec {sys.executable} {COMMAND} --workers 2"
    isolated = ["unshare", "--mount"] if "mount" in setup else []
    if isolated and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("mounting another /dev/shm needs root")
    process = subprocess.Popen(
        [*isolated, "sh", "-c", script],
        cwd=tmp_path / "cwd",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = process.communicate(timeout=200)
    if "unshare failed" in errors or "permission denied" in errors.lower():
        pytest.skip(f"mounting is not permitted here: {errors.strip()}")
    if expected is WORKS:
        assert (process.returncode, errors) == (0, "")
    else:
        assert process.returncode == 2, errors
        assert len(errors.splitlines()) == 1, errors
        assert re.search(f"^error: {expected}", errors), errors
        assert list((tmp_path / "cwd").rglob("*.json")) == [], "the directory of a run that has not started"
    assert not list(Path("/dev/shm").glob(f"torch_{process.pid}_*"))
